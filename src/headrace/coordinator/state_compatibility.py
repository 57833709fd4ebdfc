"""Compatibility of stored state with the code: it is readable as it is, upgraded, or refused.

Stored state is judged by what the storage remembers of its shapes
(:mod:`headrace.schema.compatibility`), without the old code. Each row says which version it is of.
So all that must be known here is of which versions rows may exist: ``older`` in a shape, by
version.

State that the code no longer declares is refused, too, unless the code says that it was removed
(:class:`headrace.Removed`) or renamed (``renamed_from=``), or its interface drops state in this way,
as Spark's does. A state keeps its first name in storage,
so renaming it changes nothing there.

As slices are written, older rows are upgraded. Once every slice was written by code that declared
the state all the time, no older rows are left, and their upgrade may be removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

import msgspec

from headrace.errors import Damaged
from headrace.pipeline.state_schemas import ANYTHING
from headrace.schema.compatibility import check_shape, differences, in_words

Facts = Mapping[str, Any]

#: Kinds of state that a computation must not stop declaring: pending work would be lost.
PENDING = ("timer", "posted", "waiting")
#: A description starts with the kind of state; these kinds have two words.
_TWO_WORDS = ("per",)
#: The class that declares each kind.
_CLASSES = {
    "value": "ValueState",
    "list": "ListState",
    "map": "MapState",
    "table": "TableState",
    "per worker": "PerWorker",
    "timer": "Timer",
    "posted": "Posted",
}

REMEDY = (
    "give what was added a default; or raise the state's version= and say by upgrade= how older rows are "
    "read (None gives them up); or declare it under a name of its own, and what is stored is kept"
)
GO_FORWARD = (
    "run the code that wrote it, or newer code; or go on from a copy of a step before that code came "
    "(headrace checkpoint copy)"
)
_ANOTHER_NAME = "declare it under another name; what is stored is kept"
_WAIT = "let it end first with the code that wrote it, or give the computation another name"


class Problem(msgspec.Struct, frozen=True):
    """Why stored state cannot be read, and what to do about it."""

    what: str
    remedy: str = REMEDY


def problems_of(name: str, before: Facts, now: Facts) -> Iterator[Problem]:
    """Yield why the code of a computation cannot read its stored state.

    Args:
        name: the computation.
        before: what the storage remembers of it.
        now: what its code declares.

    Raises:
        Damaged: what the storage remembers makes no sense.
    """
    check_stored(name, before.get("shapes", {}))
    removed = removed_states(before, now)
    for cell, text in before["cells"].items():
        if cell in now["cells"]:
            place = f"computation {name!r}: {_named(cell, now)}"
            yield from _State(place, cell, before, now).problems()
        elif cell not in removed or _kind(text) in PENDING:
            yield _gone(name, cell, before, now)


def check_stored(name: str, shapes: Facts) -> None:
    """Check the shapes that the storage remembers of a computation's state.

    Raises:
        Damaged: for one that no code can have declared.
    """
    for cell, shape in shapes.items():
        try:
            _check_state(shape)
            for version, older in shape.get("older", {}).items():
                int(version)
                if "described" not in older:
                    _check_state(older)
        except (ValueError, TypeError, AttributeError) as error:
            raise Damaged(
                f"the stored schema of state {cell!r} is none: {error}",
                place=f"computation {name!r}",
                remedy="restore the manifests from a copy of the storage",
            ) from None


def _check_state(shape: Facts) -> None:
    """Check the shape of one state.

    Raises:
        ValueError: saying what is wrong with it.
    """
    if not isinstance(shape.get("kind"), str):
        raise ValueError("it does not say of which kind it is")
    if "columns" in shape:
        for column in [*shape["columns"].values(), *shape.get("sub", {}).values()]:
            if not isinstance(column.get("type"), str):
                raise ValueError("a column has no type")
        return
    if "codec" not in shape:
        if "type" not in shape:
            raise ValueError("it has neither type, nor codec, nor columns")
        check_shape(shape["type"])
    if "keys" in shape:
        check_shape(shape["keys"])


def removed_states(before: Facts, now: Facts) -> list[str]:
    """Return the stored names of states that the code no longer declares, on purpose.

    Once the storage knows of them, the code need not say so again.
    """
    removed = {*before.get("removed", ()), *now.get("removed", ())}
    if now.get("drops"):
        removed |= {cell for cell, text in before["cells"].items() if _kind(text) not in PENDING}
    return sorted(removed & set(before["cells"]) - set(now["cells"]))


def dropped_states(before: Facts, now: Facts) -> dict[str, str]:
    """Return the states that the code no longer declares, without saying so; name → type in words.

    Their interface has it that they are removed. The storage has not known of it so far.
    """
    known = {*before.get("removed", ()), *now.get("removed", ())}
    dropped = [cell for cell in removed_states(before, now) if cell not in known]
    return {cell: _described(cell, before) for cell in dropped}


def _named(cell: str, now: Facts) -> str:
    """Return the name that the code has for a stored state, for messages."""
    attribute = now.get("attributes", {}).get(cell)
    return repr(cell) if attribute is None else f"{attribute!r} (stored as {cell!r})"


def _gone(name: str, cell: str, before: Facts, now: Facts) -> Problem:
    """Return the problem of a stored state that the code no longer declares."""
    text = before["cells"][cell]
    kind = _kind(text)
    what = f"computation {name!r}: {_in_short(cell, before)} is stored, and no longer declared"
    if kind in PENDING:
        what = f"computation {name!r}: {kind} {cell!r} is gone, and may be pending"
    drop = (
        _remedies(now).get("timers", _WAIT)
        if kind in PENDING
        else (
            f"if it is no longer used, say {cell} = hr.Removed(): what is stored is kept "
            f"(forget=[{name!r}] gives up all state of {name!r})"
        )
    )
    attributes = now.get("attributes", {})
    if cell in attributes.values():
        declared = next(stored for stored, attribute in attributes.items() if attribute == cell)
        return Problem(
            what,
            f"this storage has {cell!r} under its own name: leave out renamed_from={declared!r}",
        )
    new = _likely_names(cell, before, now)
    if not new:
        return Problem(what, drop)
    attribute = attributes.get(new[0], new[0])
    declaration = f"{attribute} = hr.{_CLASSES[kind]}(…, renamed_from={cell!r})"
    return Problem(
        f"{what}; is it {attribute!r} now, which is new and of the same type?",
        f"if it was renamed, say {declaration}; {drop}",
    )


def _in_short(cell: str, before: Facts) -> str:
    return f"{cell!r} ({_described(cell, before)})"


def _described(cell: str, before: Facts) -> str:
    shape = _plain(before.get("shapes", {}).get(cell))
    described: str = before["cells"][cell] if shape is None else _State.in_words(shape)
    return described


def _remedies(now: Facts) -> Mapping[str, str]:
    """Return what to do about changed state and timers, if the code's interface has its own words."""
    found: Mapping[str, str] = now.get("remedies", {})
    return found


def _likely_names(cell: str, before: Facts, now: Facts) -> list[str]:
    """Return new states of the same type as one that is gone; those of similar names first."""
    if _kind(before["cells"][cell]) not in _CLASSES:
        return []
    new = [
        other
        for other, text in now["cells"].items()
        if other not in before["cells"] and text == before["cells"][cell]
    ]
    return sorted(new, key=lambda other: -SequenceMatcher(None, cell, other).ratio())


def changes_of(before: Facts, now: Facts) -> dict[str, str]:
    """Return what happens to stored state whose shape or version has changed, by name."""
    found = {}
    for cell in before["cells"]:
        if cell not in now["cells"]:
            continue
        state, name = _State("", cell, before, now), now.get("attributes", {}).get(cell, cell)
        if state.version > state.stored_version:
            found[name] = f"upgraded from version {state.stored_version} as it is read"
        elif state.was is not None and state.was != state.is_:
            found[name] = f"was {state.in_words(state.was)}, is {state.in_words(state.is_)}"
    new = [cell for cell in removed_states(before, now) if cell not in before.get("removed", ())]
    return found | dict.fromkeys(new, "is removed: what is stored is kept, and not read")


class _State:
    """A declared state: as it is stored, and as the code declares it."""

    def __init__(self, place: str, cell: str, before: Facts, now: Facts) -> None:
        self._place = place
        self._text, self._text_now = before["cells"][cell], now["cells"][cell]
        self.was = _plain(before.get("shapes", {}).get(cell))
        self.is_ = _plain(now.get("shapes", {}).get(cell))
        self._older: Facts = before.get("shapes", {}).get(cell, {}).get("older", {})
        self._upgrades: Facts = now.get("upgrades", {}).get(cell, {})
        of = "timers" if _kind(self._text) == "timer" else "state"
        self._own_remedy = _remedies(now).get(of, "")

    @property
    def version(self) -> int:
        """The version that the code declares."""
        return int((self.is_ or {}).get("version", 1))

    @property
    def stored_version(self) -> int:
        """The newest version that was stored."""
        return int((self.was or {}).get("version", 1))

    def problems(self) -> Iterator[Problem]:
        """Yield why the code cannot read it."""
        if _kind(self._text) != _kind(self._text_now):
            yield self._problem("", _ANOTHER_NAME)
        elif self.is_ is None:
            if self._text != self._text_now:
                yield self._problem("")
        elif self.version < self.stored_version:
            yield Problem(
                f"{self._place} is stored as version {self.stored_version}, and the code's is "
                f"{self.version}{self._details(self._different())}",
                GO_FORWARD,
            )
        else:
            yield from self._of_today()
            yield from self._of_older()

    def _of_today(self) -> Iterator[Problem]:
        found = self._fixed()
        if self.version == self.stored_version:
            found += self._different()
        if self.was is None and self._text != self._text_now and self.version == 1:
            found = ["the old shape is only known by its digest"]
        if found:
            yield self._problem(self._details(found))

    def _of_older(self) -> Iterator[Problem]:
        stored = dict(self._older)
        if self.version > self.stored_version:
            stored[str(self.stored_version)] = self.was
        for older, shape in stored.items():
            taken = self._upgrades.get(older)
            if taken is None:
                yield self._problem(
                    f": there may be rows of version {older}, and no upgrade from it"
                )
            elif isinstance(taken, Mapping):
                yield from self._misread(older, shape, taken)
            elif taken == ANYTHING and _has_defaults(shape):
                yield self._problem(
                    f": not all rows of version {older} have all columns, and upgrade= does not name the "
                    "table as it was"
                )
            elif taken == ANYTHING and "codec" in (shape or {}):
                yield self._problem(
                    f": rows of version {older} are encoded by codec {shape['codec']}, and upgrade= does "
                    "not name it as what reads them"
                )

    def _misread(self, older: str, shape: Any, taken: Facts) -> Iterator[Problem]:
        """Yield why rows of an older version are not of the type that their upgrade expects."""
        if shape is None or "described" in shape:
            described = self._text if shape is None else shape["described"]
            reported = not described.endswith(taken["described"])
            found = ["it is only known by its digest, which differs"] if reported else []
        else:
            found = (column_differences if "columns" in shape else _type_differences)(shape, taken)
        if found:
            yield self._problem(
                f": rows of version {older} are not what their upgrade reads: {'; '.join(found)}"
            )

    def _different(self) -> list[str]:
        if self.was is None or self.is_ is None:
            return []
        if "columns" in self.is_:
            return column_differences(self.was, self.is_)
        return _type_differences(self.was, self.is_)

    def _fixed(self) -> list[str]:
        """Return changes that no upgrade allows: to what identifies rows, and to their expiry."""
        was, is_ = self.was, self.is_
        if was is None or is_ is None:
            return []
        found = []
        if "keys" in was and "keys" in is_:
            keys = was["keys"], is_["keys"]
            if differences(*keys) or differences(*reversed(keys)):
                words = " to ".join(in_words(of, whole=True) for of in keys)
                found.append(f"the type of a map's keys cannot change, here from {words}")
        if list(was.get("sub", {}).items()) != list(is_.get("sub", {}).items()):
            found.append("sub columns cannot change: they identify rows")
        if was.get("ttl") != is_.get("ttl") and not self._may_change_ttl(was, is_):
            found.append(f"ttl was {was.get('ttl', 'none')}, is {is_.get('ttl', 'none')}")
        if was.get("keeps", is_.get("keeps")) != is_.get("keeps"):
            found.append(
                f"only {was['keeps']} was stored, and {is_.get('keeps', 'every row')} is needed"
            )
        return found

    def _may_change_ttl(self, was: Facts, is_: Facts) -> bool:
        """Return whether a time to live may be added or removed.

        This takes a new version, and state in which each value has its own time. What was stored
        without a time to live stays until it is written again. If the new version has none, all
        values lose theirs. The clock cannot change. A list with a time to live has gaps, so it must
        keep it.
        """
        if "columns" in is_ or self.version == self.stored_version:
            return False
        return "ttl" not in was or ("ttl" not in is_ and is_["kind"] != "list")

    def _problem(self, why: str, remedy: str = REMEDY) -> Problem:
        was = self._text if self.was is None else self.in_words(self.was)
        is_ = self._text_now if self.was is None or self.is_ is None else self.in_words(self.is_)
        if self._own_remedy:  # (its schemas say all, and in the code's own words)
            return Problem(f"{self._place} was {was}, is {is_}", self._own_remedy)
        return Problem(f"{self._place} was {was}, is {is_}{why}", remedy)

    def _details(self, found: list[str]) -> str:
        more = [what for what in found if not what.startswith("was ") or ":" in what]
        return f": {'; '.join(more)}" if more else ""

    @staticmethod
    def in_words(shape: Any) -> str:
        """Return the shape of a state in words."""
        version = f" version {shape['version']}" if "version" in shape else ""
        if "columns" in shape:
            columns = {**shape.get("sub", {}), **shape["columns"]}
            reported = ", ".join(f"{name}: {of['type']}" for name, of in columns.items())
            return f"{shape['kind']} ({reported}){version}"
        ttl = f" with ttl in {shape['ttl']}" if "ttl" in shape else ""
        if "written" in shape:
            return f"{shape['kind']} ({shape['written']}){ttl}{version}"
        keys = f" {in_words(shape['keys'])} →" if "keys" in shape else ""
        return f"{shape['kind']}{keys} {_type_in_words(shape)}{ttl}{version}"


def column_differences(was: Facts, is_: Facts) -> list[str]:
    """Return why rows with some columns cannot be read as rows with others; nothing if they can.

    A column that is added needs a value for the rows from before it. A column that is removed is
    given up by name, and stays given up, since rows may still have it.
    """
    old, new = was["columns"], is_["columns"]
    found = []
    for name, column in old.items():
        if name not in new:
            if name not in is_.get("dropped", ()):
                found.append(f"column {name!r} was removed")
        elif new[name]["type"] != column["type"]:
            found.append(f"column {name!r} was {column['type']}, is {new[name]['type']}")
        elif "default" in column and "default" not in new[name]:
            found.append(f"column {name!r} lost its value for rows from before it")
        elif "default" in column and not _same(column["default"], new[name]["default"]):
            was_, now = column["default"], new[name]["default"]
            found.append(f"column {name!r} was {was_!r} in rows from before it, is {now!r}")
    for name, column in new.items():
        if name not in old and name in was.get("dropped", ()):
            found.append(
                f"column {name!r} was dropped, and rows may still have it: name it otherwise"
            )
        elif name not in old and "default" not in column:
            found.append(f"column {name!r} was added without a value for rows from before it")
    return found


def merged_shapes(before: Facts, now: Facts, *, step: int, floor: int) -> dict[str, Any]:
    """Return the shapes of a computation's state to store.

    Args:
        before: what the storage remembers of the computation.
        now: what the code declares, checked against it.
        step: the step of the claim with which the code starts.
        floor: everything up to this step was written again, as a part of slices.
    """
    stored, declared = before.get("shapes", {}), now.get("shapes", {})
    kept = {cell: _undeclared(shape) for cell, shape in stored.items() if cell not in declared}
    for cell, shape in declared.items():
        was = stored.get(cell)
        if was is None and cell in before["cells"]:
            was = {"described": before["cells"][cell]}  # as older versions of Headrace stored it
        kept[cell] = _merged(was, shape, step, floor)
    return kept


def undeclared_shapes(before: Facts) -> dict[str, Any]:
    """Return the shapes to store of a computation that was removed."""
    return {cell: _undeclared(shape) for cell, shape in before.get("shapes", {}).items()}


def _merged(was: Any, shape: Any, step: int, floor: int) -> Any:
    if was is None:
        return shape
    older = {}
    for version, facts in was.get("older", {}).items():
        since = facts.get("since")
        # Per-worker state is in no slice.
        if since is None or floor < since or shape["kind"] == "per worker":
            older[version] = {**facts, "since": step if since is None else since}
    now = shape.get("version", 1)
    if now > was.get("version", 1):
        older[str(was.get("version", 1))] = {**_plain(was), "since": step}
    dropped = sorted({*was.get("dropped", ()), *shape.get("dropped", ())})
    if now > was.get("version", 1):
        dropped = sorted(shape.get("dropped", ()))
    return {
        **_plain(shape),
        **({"dropped": dropped} if dropped else {}),
        **({"older": older} if older else {}),
    }


def _undeclared(shape: Any) -> Any:
    """Return a shape that no code declares now: its rows are copied unchanged."""
    if "older" not in shape:
        return shape
    older = {version: {**facts, "since": None} for version, facts in shape["older"].items()}
    return {**shape, "older": older}


def _plain(shape: Any) -> Any:
    return (
        None if shape is None else {k: v for k, v in shape.items() if k not in ("older", "since")}
    )


def _kind(text: str) -> str:
    words = text.split(" ")
    return " ".join(words[: 2 if words[0] in _TWO_WORDS else 1])


def _has_defaults(shape: Any) -> bool:
    return any("default" in column for column in (shape or {}).get("columns", {}).values())


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _type_in_words(shape: Facts) -> str:
    return f"codec {shape['codec']}" if "codec" in shape else in_words(shape["type"], whole=True)


def _type_differences(was: Facts, is_: Facts) -> list[str]:
    if "codec" in was or "codec" in is_:
        same = was.get("codec") == is_.get("codec")
        return [] if same else [f"was {_type_in_words(was)}, is {_type_in_words(is_)}"]
    return differences(was["type"], is_["type"])
