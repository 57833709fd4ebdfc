"""The streams of a pipeline graph: what flows between injectors, computations and sinks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import PipelineError
from headrace.keyspace.groups import ALONE, Group
from headrace.schema import TIMESTAMP, ValueType, describe

DEAD_LETTER = "dead_letter"
LATE = "late"
#: Part of the address of an injector's records before the check of their ids.
RAW = "raw"
#: Part of the address of an injector's bad records, before they are brought to their stream.
BAD = "bad"


class DeadLetter(msgspec.Struct, frozen=True):
    """A row of a computation's ``dead_letter`` stream: a record or timer whose handler raised.

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
    """The part of a pipeline that its streams need."""

    def side_streams(self, injector: str) -> Mapping[str, Stream]:
        """Return the side streams of an injector, by the names that users have for them."""
        ...


class Rewrite(Protocol):
    """How the records of a stream are changed on their way to one reader, where they are routed.

    It has no state, and looks at each record alone. So it may run anywhere, on any part of a stream.
    """

    def values(self) -> ValueType:
        """Return the type of the records' values as the reader gets them."""
        ...

    def apply(
        self, batch: pa.RecordBatch | pa.Table
    ) -> tuple[npt.NDArray[np.int64] | None, Mapping[str, pa.Array]]:
        """Return changed records.

        Args:
            batch: records with the columns of the stream, and others.

        Returns:
            The position of the record that each comes from, None for all in their order; and the
            columns of their values.
        """
        ...


class Stream:
    """A named stream of records (key, value, timestamp) that computations can read.

    Attributes:
        pipeline: the pipeline to which it belongs.
        name: the injector's name, or ``computation.output``.
        values: the type of its values.
        key_fields: the key of the computation that produces it; empty for an injector's stream.
        is_late: whether it carries late records. Its readers do not judge their lateness again.
        address: identifies it within the pipeline. This is its name, except for an injector's
            records before their ids are checked.
        checked: whether it carries an injector's records after the check of their ids.
        group: the group of the computation that produces it. It determines where its keys lie.
        label: distinguishes it among the inputs of one computation. This is its name, unless the
            computation reads the stream in several ways.
        rewrite: how its records are changed on their way to the reader; None if they are not.

    Example::

        def totals(p: hr.Pipeline, stream: hr.Stream) -> hr.Node:
            return p.compute("totals", hr.ops.Running(visits=hr.ops.Count()), keys={stream: "page"})


        totals(p, hits)
    """

    def __init__(
        self,
        pipeline: StreamOwner,
        name: str,
        values: ValueType,
        key_fields: tuple[pa.Field, ...],
        *,
        is_late: bool = False,
        address: str = "",
        checked: bool = False,
        group: Group = ALONE,
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.values = values
        self.key_fields = key_fields
        self.is_late = is_late
        self.address = address or name
        self.checked = checked
        self.group = group
        self.label = name
        self.rewrite: Rewrite | None = None

    def rewritten(self, rewrite: Rewrite, label: str) -> Stream:
        """Return the stream as a reader gets it whose records are changed on the way to it.

        It has the stream's name and address, and other values.

        Args:
            rewrite: how records are changed.
            label: distinguishes it among the reader's inputs.
        """
        found = copy.copy(self)
        found.pipeline = self.pipeline  # (a copy comes without it)
        found.rewrite, found.label, found.values = rewrite, label, rewrite.values()
        return found

    def read_as(self, other: Stream) -> Stream:
        """Return this stream as a reader gets it that has read another one so far."""
        return self if other.rewrite is None else self.rewritten(other.rewrite, other.label)

    @property
    def owner(self) -> str:
        """The name of the injector or computation that the stream belongs to."""
        return self.name.partition(".")[0]

    def __getitem__(self, name: str) -> Stream:
        """Return a side stream of an injector: ``"dead_letter"``, with the records it cannot read.

        Raises:
            PipelineError: if it has no side stream of that name.
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
        """Return the columns that sinks get: key, event time, and the value's columns.

        The key is called ``key`` (``key0``, ``key1``, … if it has several parts), and the time
        ``timestamp``. The value's columns have their names outside (``rename=``). If one of these
        is the same, in capitals or not, ours gets an underscore in front, and a second one if that
        is taken too.
        """
        values = list(self.values.outside_schema)
        names = self.public_names([field.name for field in values])
        keys = [field.with_name(name) for name, field in zip(names, self.key_fields, strict=False)]
        return pa.schema([*keys, pa.field(names[len(keys)], TIMESTAMP), *values])

    def public_names(self, values: Sequence[str]) -> list[str]:
        """Return the names of all columns that sinks get, given those of the value's columns."""
        taken = {name.lower() for name in values}
        count = len(self.key_fields)
        keys = ["key"] if count == 1 else [f"key{number}" for number in range(count)]
        return [*(_free(name, taken) for name in (*keys, "timestamp")), *values]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the pipeline when the stream is sent to a task: it holds sources and sinks."""
        return {**self.__dict__, "pipeline": None}

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {describe(self.values.schema)})"


def _free(name: str, taken: set[str]) -> str:
    """Return a free name for one of our columns, with underscores in front if necessary."""
    while name in taken:
        name = f"_{name}"
    return name
