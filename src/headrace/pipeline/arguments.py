"""Checks of the arguments with which a pipeline is built: names, choices, durations, code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.computation.columnar import ColumnarComputation
from headrace.computation.computation import Computation, UserCode
from headrace.computation.inspection import source_place
from headrace.errors import PipelineError
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.keyspace.groups import MAX_GROUPS, Groups

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def checked_name(name: str, what: str) -> str:
    """Return a name if it is valid.

    Raises:
        PipelineError: if it is not.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PipelineError(
            f"{name!r} cannot be the name of {what}",
            remedy="use a letter, then letters, digits, '_' or '-', at most 64 in all",
        )
    return name


def checked_groups(names: Sequence[str], pipeline: str) -> Groups:
    """Return the groups of a pipeline.

    Raises:
        PipelineError: for an invalid or repeated name, and for too many groups.
    """
    check_listed("groups", names, f"pipeline {pipeline!r}")
    for name in names:
        checked_name(name, "a group")
    if len(set(names)) < len(names) or len(names) > MAX_GROUPS:
        raise PipelineError(
            f"pipeline {pipeline!r}: groups={list(names)!r}",
            remedy=f"name each group once, and at most {MAX_GROUPS}",
        )
    return Groups(names)


def check_listed(what: str, names: object, of: str) -> None:
    """Check that an option that takes names was given a list of them.

    Raises:
        PipelineError: for one text, whose letters would be taken for names, and for anything else.
    """
    if isinstance(names, str):
        raise PipelineError(
            f"{of}: {what}={names!r} is one text, and no list of names",
            remedy=f"give a list: {what}=[{names!r}]",
        )
    if not isinstance(names, Iterable):
        raise PipelineError(
            f"{of}: {what}={names!r} is not a list of names",
            remedy=f'give a list of texts: {what}=["name"]',
        )


def not_there(name: str, what: str, there: Mapping[str, Any]) -> PipelineError:
    """Return the error for a name that nothing in the pipeline has."""
    return PipelineError(
        f"the pipeline has no {what} {name!r}",
        remedy=f"it has: {', '.join(there) or 'none'}",
    )


def check_one_of(what: str, choice: str, choices: Sequence[str], name: str) -> None:
    """Check that an option of a computation is one of its choices.

    Raises:
        PipelineError: if it is not.
    """
    if choice not in choices:
        raise PipelineError(
            f"computation {name!r}: {what}={choice!r} is not known",
            remedy=f"choose one of: {', '.join(map(repr, choices))}",
        )


def positive(duration: DurationLike | None, what: str, name: str, least: int = 1) -> int | None:
    """Return a duration in microseconds, or None if none is given.

    Raises:
        PipelineError: if it is shorter than ``least``.
    """
    if duration is None:
        return None
    micros = duration_micros(duration, what, place=repr(name))
    if micros < least:
        raise PipelineError(
            f"{name!r}: {what} is {duration!r}", remedy=f"give a duration of at least {least} µs"
        )
    return micros


def place_of_code(computation: UserCode, name: str) -> str:
    """Return the file and line of the object that the user passed as a computation.

    Raises:
        PipelineError: if it is not a computation.
    """
    place = source_place(computation)
    if isinstance(computation, type) and issubclass(computation, UserCode):
        raise PipelineError(
            f"computation {name!r}: {computation.__name__} is a class, and not an object of it",
            place=place,
            remedy=f"make one: {computation.__name__}()",
        )
    if not isinstance(computation, Computation | ColumnarComputation):
        raise PipelineError(
            f"computation {name!r}: {computation!r} is not a Computation",
            place=place,
            remedy="pass an object of a subclass of headrace.Computation or ColumnarComputation",
        )
    return place
