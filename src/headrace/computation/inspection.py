"""A computation's declarations, collected from its class and checked."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from headrace.computation.computation import UserCode
from headrace.computation.counters import Counter
from headrace.computation.declarations import (
    COUNTER,
    PER_WORKER,
    Declaration,
    Hold,
    Output,
    Posted,
    Removed,
    Timer,
    hold_cell,
    stored_name,
)
from headrace.errors import PipelineError
from headrace.eventtime.domains import EVENT_TIME, TimeDomain


class Declarations(msgspec.Struct, frozen=True):
    """Everything that a computation declares.

    Attributes:
        states: value, list and map state, or tables, by name.
        timers: timers, by name.
        outputs: output streams, by name.
        posts: streams of posts, by name.
        per_worker: state by worker instead of by key, by name.
        removed: the stored names of what was removed on purpose.
        counters: counters, by name.
    """

    states: dict[str, Any]
    timers: dict[str, Any]
    outputs: dict[str, Any]
    posts: dict[str, Any] = {}
    per_worker: dict[str, Any] = {}
    removed: list[str] = []
    counters: dict[str, Any] = {}

    @property
    def names(self) -> set[str]:
        """The names of all that is declared."""
        every = (
            self.states,
            self.timers,
            self.outputs,
            self.posts,
            self.per_worker,
            self.removed,
            self.counters,
        )
        return {name for declared in every for name in declared}

    @property
    def holding(self) -> list[str]:
        """The timers that may have holds."""
        return [name for name, timer in self.timers.items() if timer.holds]

    @property
    def cells(self) -> dict[str, Any]:
        """Everything that is stored with a key, by the name of its cell in storage."""
        return {**by_stored_name({**self.states, **self.timers}), **self._holds}

    @property
    def attributes(self) -> dict[str, str]:
        """The names of the attributes whose cells have another name in storage, by that name."""
        found = {**self.states, **self.timers, **self.per_worker, **self.posts}
        return {item.renamed_from: name for name, item in found.items() if item.renamed_from}

    @property
    def dated_cells(self) -> dict[str, TimeDomain]:
        """Cells whose entries are times, each with the clock that decides when to load its bin.

        A hold counts by event time. A bin with a hold that the watermark has reached is in memory,
        so that the exact lowest hold is known.
        """
        timers = {name: timer.domain for name, timer in by_stored_name(self.timers).items()}
        return {**timers, **dict.fromkeys(self._holds, EVENT_TIME)}

    @property
    def _holds(self) -> dict[str, Hold]:
        return {hold_cell(stored_name(name, self.timers[name])): Hold() for name in self.holding}


def by_stored_name(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return declarations by their names in storage."""
    return {stored_name(name, item): item for name, item in items.items()}


def declarations_of(
    computation: UserCode, *, place: str, declared: Mapping[str, Declaration | Output] | None = None
) -> Declarations:
    """Return what a computation declares: in its class, and through :meth:`UserCode.declare`.

    Raises:
        PipelineError: if a declaration is wrong or a handler is missing.
    """
    cls = type(computation)
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            if isinstance(attribute, Declaration | Output):
                found[name] = attribute
            else:
                found.pop(name, None)
    for name, declaration in (declared or {}).items():
        declaration.name = name
        found[name] = declaration
    removed = [name for name, item in found.items() if isinstance(item, Removed)]
    _check_stored_names(found, cls, place)
    found = {name: item for name, item in found.items() if name not in removed}
    timers = {name: item for name, item in found.items() if isinstance(item, Timer)}
    posts = {name: item for name, item in found.items() if isinstance(item, Posted)}
    outputs = {n: item for n, item in found.items() if isinstance(item, Output) and n not in posts}
    states = {n: i for n, i in found.items() if isinstance(i, Declaration) and n not in timers}
    per_worker = {n: states.pop(n) for n, i in [*states.items()] if i.kind == PER_WORKER}
    counters = {n: states.pop(n) for n, i in [*states.items()] if i.kind == COUNTER}
    if not _defines(cls, cls.on_records):
        raise PipelineError(
            f"{cls.__name__} has no {cls.on_records}",
            place=place,
            remedy=f"define {cls.on_records}(self, ctx, ...)",
        )
    if timers and not _defines(cls, cls.on_timers):
        raise PipelineError(
            f"{cls.__name__} declares timer {next(iter(timers))!r} and has no {cls.on_timers}",
            place=place,
            remedy=f"define {cls.on_timers}(self, ctx, ...), or remove the timer",
        )
    holding = [name for name, timer in timers.items() if timer.holds]
    if holding and not cls.may_hold:
        raise PipelineError(
            f"{cls.__name__}.{holding[0]} is a timer with holds, which it cannot have",
            place=place,
            remedy="only timers of a per-record Computation can hold the output watermark",
        )
    wrong = [name for name, item in states.items() if item.kind not in cls.state_kinds]
    if wrong:
        raise PipelineError(
            f"{cls.__name__}.{wrong[0]} is {states[wrong[0]].kind} state, which it cannot have",
            place=place,
            remedy=f"its state can be: {', '.join(cls.state_kinds)}",
        )
    for name in found:
        if name.startswith("_"):
            raise PipelineError(
                f"{cls.__name__}.{name} cannot be a name: it begins with an underscore", place=place
            )
    return Declarations(states, timers, outputs, posts, per_worker, removed, counters)


def _check_stored_names(found: Mapping[str, Any], cls: type[UserCode], place: str) -> None:
    """Check that no two declarations are stored under one name.

    Raises:
        PipelineError: if two are.
    """
    stored: dict[str, str] = {}
    for name, item in found.items():
        if isinstance(item, Counter) or (isinstance(item, Output) and not isinstance(item, Posted)):
            continue
        other = stored.setdefault(stored_name(name, item), name)
        if other != name:
            raise PipelineError(
                f"{cls.__name__}.{name} and {cls.__name__}.{other} are both stored as "
                f"{stored_name(name, item)!r}",
                place=place,
                remedy="a name in storage stays with its state: give the new one another name",
            )


def _defines(cls: type[UserCode], handler: str) -> bool:
    """Return whether a user's class, and not only the base class, defines a handler."""
    base = next(b for b in cls.__mro__ if "on_records" in vars(b))
    return getattr(cls, handler) is not getattr(base, handler)


def source_place(thing: object) -> str:
    """Return the file and line of a user's class or function, for error messages."""
    target: Any = thing if inspect.isclass(thing) or callable(thing) else type(thing)
    return _place_of(target)


@lru_cache(maxsize=256)
def _place_of(target: Any) -> str:
    # Cached, because Python parses the whole file to find a class: 5 ms and more for each call.
    try:
        path = inspect.getsourcefile(target)
        _, line = inspect.getsourcelines(target)
    except (OSError, TypeError):
        return getattr(target, "__qualname__", repr(target))
    return f"{path}:{line}"
