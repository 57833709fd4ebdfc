"""Retained productions as input: what a producer gave its readers, step by step, to be read again.

In a step a reader receives two things: the records, which are in the retained files, and the
producer's watermark. The watermark is recorded here, in a *mark*, for each step that moved it. A
step that only wrote records is known by its files; its watermarks are those of the mark before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence

import msgspec

from headrace.eventtime.timestamps import MIN_TIME
from headrace.runfiles.format import FileRef
from headrace.storage.bounds import Micros, StepNumber

_NOWHERE = (MIN_TIME, MIN_TIME)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The watermarks of the producers of retained streams after a step.

    Attributes:
        step: the step.
        watermarks: (low, percentile) watermark of what each computation produces.
    """

    step: StepNumber
    watermarks: dict[str, tuple[Micros, Micros]]


class Retained(msgspec.Struct, frozen=True):
    """What a step gave the readers of some retained streams.

    Attributes:
        step: the step.
        files: the files with its productions.
        watermarks: (low, percentile) of each stream after it. It is the beginning of time where an
            older version recorded none, which moves no reader's watermark.
    """

    step: int
    files: list[FileRef]
    watermarks: dict[str, tuple[int, int]]


def producer_of(stream: str) -> str:
    """Return the computation that produces a stream."""
    return stream.partition(".")[0]


def with_mark(
    marks: list[Mark],
    step: int,
    streams: Collection[str],
    *,
    watermarks: Mapping[str, tuple[int, int]],
    percentiles: Mapping[str, int],
) -> list[Mark]:
    """Return the marks after a step; the same list if it moved none of these watermarks.

    Args:
        marks: the marks before it.
        step: the step.
        streams: the retained streams.
        watermarks: (input, output) of each computation after it; empty for a step that computes
            nothing.
        percentiles: the percentile watermark of each computation's output, where it has one.
    """
    producers = {producer_of(stream) for stream in streams}
    after = {
        name: (watermarks[name][1], percentiles.get(name, watermarks[name][1]))
        for name in sorted(producers)
        if name in watermarks
    }
    if not after or (marks and marks[-1].watermarks == after):
        return marks
    return [*marks, Mark(step, after)]


def lowered(marks: list[Mark], most: Mapping[str, int]) -> list[Mark]:
    """Return the marks after an end of the input was taken back.

    Args:
        marks: as they were recorded.
        most: the output watermark with which each computation goes on.
    """
    if not any(
        out > most.get(name, out) for mark in marks for name, (out, _) in mark.watermarks.items()
    ):
        return marks
    return [Mark(mark.step, _lowered(mark.watermarks, most)) for mark in marks]


def _lowered(
    watermarks: Mapping[str, tuple[int, int]], most: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    return {
        name: (most[name], most[name]) if out > most.get(name, out) else (out, percentile)
        for name, (out, percentile) in watermarks.items()
    }


#: Maximum number of recorded clock readings. Beyond it, every other one is dropped.
_MOST_CLOCKS = 256


def with_clock(clocks: list[tuple[int, int]], step: int, clock_us: int) -> list[tuple[int, int]]:
    """Return the (step, clock reading) pairs after one more, which give the ages of steps."""
    after = [*clocks, (step, clock_us)]
    return after if len(after) <= _MOST_CLOCKS else after[::2]


def without_old(
    files: list[FileRef], kept_from: Mapping[str, int]
) -> tuple[list[FileRef], list[FileRef]]:
    """Return the files that are kept, and those that hold only steps that are dropped.

    Args:
        files: files of retained productions.
        kept_from: the first step that is kept, by stream. Other streams are kept whole.
    """
    old = [file for file in files if all(file.step < kept_from.get(of, 0) for of in file.owners)]
    names = {file.name for file in old}
    return [file for file in files if file.name not in names], old


def without_old_marks(marks: list[Mark], first: int) -> list[Mark]:
    """Return the marks that a reader from a step on needs: with the last one before that step."""
    return marks[max(0, _first(marks, first - 1) - 1) :]


def next_retained(
    marks: Sequence[Mark], files: Sequence[FileRef], streams: Collection[str], after: int
) -> Retained | None:
    """Return what the next step gave the readers of some streams; None if there is no such step.

    Args:
        marks, files: of all steps, ascending.
        streams: the streams.
        after: only later steps count.
    """
    file = next(
        (files[n] for n in range(_first(files, after), len(files)) if _holds(files[n], streams)),
        None,
    )
    at = _first(marks, after)
    before = {} if at == 0 else _of(marks[at - 1], streams)
    mark = next((marks[n] for n in range(at, len(marks)) if _of(marks[n], streams) != before), None)
    steps = [found.step for found in (file, mark) if found is not None]
    if not steps:
        return None
    step = min(steps)
    noted = before if mark is None or mark.step > step else _of(mark, streams)
    held = [
        files[n]
        for n in range(_first(files, step - 1), _first(files, step))
        if _holds(files[n], streams)
    ]
    return Retained(step, held, {name: noted.get(name, _NOWHERE) for name in streams})


def watermarks_at(
    marks: Sequence[Mark], streams: Collection[str], step: int
) -> dict[str, tuple[int, int]]:
    """Return the watermarks of some streams after a step."""
    at = _first(marks, step)
    return dict.fromkeys(streams, _NOWHERE) if at == 0 else _of(marks[at - 1], streams)


def _first(items: Sequence[Mark] | Sequence[FileRef], after: int) -> int:
    return bisect_right(items, after, key=lambda item: item.step)


def _holds(file: FileRef, streams: Collection[str]) -> bool:
    return any(name in streams for name in file.owners)


def _of(mark: Mark, streams: Collection[str]) -> dict[str, tuple[int, int]]:
    return {name: mark.watermarks.get(producer_of(name), _NOWHERE) for name in streams}
