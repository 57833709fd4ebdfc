"""Streams of a drawing: what flows between its injectors, computations and sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from headrace.errors import PipelineError
from headrace.keyspace.groups import ALONE, Group
from headrace.schema import TIMESTAMP, ValueType, describe

DEAD_LETTER = "dead_letter"
LATE = "late"
#: What of an injector comes before the check of its ids, as a part of the stream's address.
RAW = "raw"
#: What of it cannot be read, before it is brought to its stream, in the same place.
BAD = "bad"


class DeadLetter(msgspec.Struct, frozen=True):
    """What a computation's ``dead_letter`` stream carries: a record or timer whose handler raised.

    Attributes:
        stream: the input stream, or the timer's name.
        error: the exception's type and text.
        traceback: the user's lines.
        value: the record's value as JSON, or the timer's tag.
    """

    stream: str
    error: str
    traceback: str
    value: str


class StreamOwner(Protocol):
    """The pipeline that a stream is part of, as far as streams need it."""

    def side_streams(self, injector: str) -> Mapping[str, Stream]:
        """Return the side streams of an injector, by the names that users have for them."""
        ...


class Stream:
    """A named stream of (key, value, timestamp); computations subscribe to it.

    Attributes:
        name: the injector's name, or ``computation.output``.
        values: the type of its values.
        key_fields: the key of the computation that produces it; empty for an injector's.
        is_late: whether it carries late records, which its consumers do not judge once more.
        address: what it is subscribed by, unique in the pipeline: its name, unless it is what an
            injector reads before its ids are checked.
        checked: whether it is what is left of an injector's records after their ids were checked.
        group: the group of the computation that produces it, which says where its keys lie.
    """

    def __init__(
        self, pipeline: StreamOwner, name: str, values: ValueType, key_fields: tuple[pa.Field, ...],
        *, is_late: bool = False, address: str = "", checked: bool = False, group: Group = ALONE,
    ) -> None:  # fmt: skip
        self.pipeline = pipeline
        self.name = name
        self.values = values
        self.key_fields = key_fields
        self.is_late = is_late
        self.address = address or name
        self.checked = checked
        self.group = group

    @property
    def owner(self) -> str:
        """The name of the injector or computation whose stream it is."""
        return self.name.partition(".")[0]

    def __getitem__(self, name: str) -> Stream:
        """Return a side stream of an injector: ``"dead_letter"``, of what its source cannot read.

        Raises:
            PipelineError: when it has none of that name.
        """
        sides = self.pipeline.side_streams(self.name)
        if name not in sides:
            raise PipelineError(
                f"stream {self.name!r} has no side stream {name!r}",
                remedy=f"say p.inject({self.name!r}, …, on_error={DEAD_LETTER!r}) for "
                f"stream[{DEAD_LETTER!r}]; a computation's are named by node[…]",
            )
        return sides[name]

    def public_schema(self) -> pa.Schema:
        """Return the columns that sinks get: the key, the event time, the value's by their names outside.

        The key is called ``key`` (``key0``, ``key1``, … if it has several parts), the time ``timestamp``.
        Where the value has a column of that name, in capitals or not, ours gets an underscore in front,
        and a second one if that is taken, too.
        """
        values = list(self.values.outside_schema)
        names = self.public_names([field.name for field in values])
        keys = [field.with_name(name) for name, field in zip(names, self.key_fields, strict=False)]
        return pa.schema([*keys, pa.field(names[len(keys)], TIMESTAMP), *values])

    def public_names(self, values: Sequence[str]) -> list[str]:
        """Return the names of all columns that sinks get, beside columns of values of these names."""
        taken = {name.lower() for name in values}
        count = len(self.key_fields)
        keys = ["key"] if count == 1 else [f"key{number}" for number in range(count)]
        return [*(_free(name, taken) for name in (*keys, "timestamp")), *values]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the drawing behind when sent to a task: it holds sources and sinks."""
        return {**self.__dict__, "pipeline": None}

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {describe(self.values.schema)})"


def _free(name: str, taken: set[str]) -> str:
    """Return a name for a column of ours that leaves the user's own alone; they have none with two."""
    while name in taken:
        name = f"_{name}"
    return name
