"""What the server answers, as JSON of a bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.errors.printable import json_printable
from headrace.observe.leaders import LeaderState
from headrace.observe.plain import with_null_times
from headrace.observe.watching import Reading, ReadingState

#: Largest answer, in bytes.
MOST_BYTES = 1 << 20


class Summary(msgspec.Struct, frozen=True):
    """A pipeline in the list of all.

    Attributes:
        pipeline, storage, state, age_s, unreachable_since_s, why: as in ``Reading``.
        step, paused, leader, input, lag_s: as in ``Picture``, with the largest lag of all
            computations; None before the first picture.
    """

    pipeline: str
    storage: str
    state: ReadingState
    age_s: float | None
    unreachable_since_s: float | None
    why: str
    step: int | None
    paused: bool | None
    leader: LeaderState | None
    input: str | None
    lag_s: float | None


class Readiness(msgspec.Struct, frozen=True):
    """Whether the server can show what a pipeline does now, and whether anybody runs it.

    Attributes:
        pipeline, state, why: as in ``Reading``.
        ready: whether the picture is as of now, or there is no pipeline yet.
        leader, paused: as in ``Picture``; None before the first. They do not make it unready.
    """

    pipeline: str
    ready: bool
    state: ReadingState
    why: str
    leader: LeaderState | None
    paused: bool | None


def summary_of(reading: Reading) -> Summary:
    """Return the summary of what is known of a storage."""
    picture = reading.picture
    lags = [] if picture is None else [of.lag_s for of in picture.computations.values()]
    return Summary(
        pipeline=reading.pipeline,
        storage=reading.storage,
        state=reading.state,
        age_s=reading.age_s,
        unreachable_since_s=reading.unreachable_since_s,
        why=reading.why,
        step=None if picture is None else picture.step,
        paused=None if picture is None else picture.paused,
        leader=None if picture is None else picture.leader.state,
        input=None if picture is None else picture.input,
        lag_s=max((lag for lag in lags if lag is not None), default=None),
    )


def readiness_of(reading: Reading) -> Readiness:
    """Return whether a storage can be read at the moment."""
    picture = reading.picture
    return Readiness(
        pipeline=reading.pipeline,
        ready=reading.state in ("read", "empty"),
        state=reading.state,
        why=reading.why,
        leader=None if picture is None else picture.leader.state,
        paused=None if picture is None else picture.paused,
    )


def named(readings: Sequence[Reading], pipeline: str | None) -> Reading | None:
    """Return the pipeline of a name, or the only one if no name is given; None if there is none."""
    found = [reading for reading in readings if pipeline in (None, reading.pipeline)]
    return found[0] if len(found) == 1 else None


def encoded(facts: Any) -> bytes | None:
    """Return data as JSON; None if that is larger than any answer may be."""
    data = json_printable(msgspec.json.encode(with_null_times(facts)).decode()).encode()
    return data if len(data) <= MOST_BYTES else None


def picture_answer(reading: Reading) -> bytes | None:
    """Return a picture as JSON. If it is too large, positions of sources are left out, as null.

    Returns:
        the JSON; None if it is too large even so.
    """
    data = encoded(reading)
    if data is not None or reading.picture is None:
        return data
    picture = reading.picture
    shorter = {
        name: msgspec.structs.replace(of, position=None) for name, of in picture.injectors.items()
    }
    picture = msgspec.structs.replace(picture, injectors=shorter)
    return encoded(msgspec.structs.replace(reading, picture=picture))
