"""Operators without state: one new record, one or none, or any number for each record.

Their functions get a batch (:class:`headrace.KeyedBatch`). ``batch["amount"]`` is a NumPy array
with a value for each record, ``batch.arrow("amount")`` is the same in Arrow, and
``batch.timestamps_us`` are the event times.

The result for a record must depend on that record alone, since batches hold other records if
workers or steps are different. Keys and event times stay the same. Records behind the watermark are
passed on, since these operators never close anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.computation.batches import KeyedBatch
from headrace.computation.columnar import BatchContext, ColumnarComputation
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output
from headrace.errors import PipelineError
from headrace.ops.columns import place_of, same_schema
from headrace.schema import value_type_of


class _Stateless(ColumnarComputation):
    default_late = "process"
    judges_late = True  # nothing is late for code without state

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise PipelineError(
                f"{function!r} is not a function",
                place=f"ops.{type(self).__name__}",
                remedy="give a function of a batch",
            )
        self._function = function


class Map(_Stateless):
    """Replaces each record by another record.

    Args:
        function: a function of a batch. It returns the new columns, as a dict of arrays with a
            value for each record; for a scalar type, the array itself.
        type: the new records' type: a struct, a dataclass, a scalar, or a dict of name → type.

    Cost: one call for the records of a step, on each worker.

    Example::

        euros = hr.ops.Map(lambda b: {"cents": b["cents"] * 2}, {"cents": int})
        p.compute("euros", euros, keys={bids: "auction"})

    Raises:
        PipelineError: for an object that is not a function, or a type that a stream cannot carry.
        UserCodeError: in the step, if the function's result does not fit the type.
    """

    def __init__(self, function: Callable[[KeyedBatch], Any], type: Any) -> None:
        super().__init__(function)
        self._type = value_type_of(type, place="ops.Map")

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        return {"out": Output(self._type)}

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        ctx.produce("out", batch.row_keys, self._function(batch))


class Filter(_Stateless):
    """Passes on some of the records, unchanged.

    Args:
        function: a function of a batch. It returns for each record whether it goes on.

    Example::

        p.compute("dear", hr.ops.Filter(lambda b: b["cents"] > 1_000), keys={bids: "auction"})

    Raises:
        PipelineError: for an object that is not a function. When the pipeline is built, for streams
            with different columns.
        UserCodeError: in the step, if the function does not return a boolean for each record.
    """

    def __init__(self, function: Callable[[KeyedBatch], Any]) -> None:
        super().__init__(function)

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        same_schema(inputs, place_of(self, inputs))
        return {"out": Output(inputs[0].values)}

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        chosen = np.asarray(self._function(batch))
        if chosen.dtype != np.bool_ or chosen.shape != (len(batch),):
            raise TypeError(
                f"ops.Filter wants a boolean for each of {len(batch)} records, and was given "
                f"{chosen.dtype} of shape {chosen.shape}"
            )
        rows = np.flatnonzero(chosen)
        ctx.produce("out", batch.row_keys[rows], batch.records.take(rows))


class FlatMap(_Stateless):
    """Replaces each record by any number of records.

    Args:
        function: a function of a batch. It returns a pair. The first item has, for each new record,
            the position (from 0) of the record from which it comes, ascending. The second item is
            the new columns, as for :class:`Map`.
        type: the new records' type.

    Example::

        def words(batch):
            split = [text.split() for text in batch["text"]]
            rows = np.repeat(np.arange(len(batch)), [len(found) for found in split])
            return rows, {"word": [word for found in split for word in found]}


        p.compute("words", hr.ops.FlatMap(words, {"word": str}), keys={lines: "file"})

    Raises:
        PipelineError: for an object that is not a function, or a type that a stream cannot carry.
        UserCodeError: in the step, if the function's result does not fit.
    """

    def __init__(self, function: Callable[[KeyedBatch], tuple[Any, Any]], type: Any) -> None:
        super().__init__(function)
        self._type = value_type_of(type, place="ops.FlatMap")

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        return {"out": Output(self._type)}

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        positions, values = self._function(batch)
        rows = np.asarray(positions, dtype=np.int64)
        if len(rows) and not (
            rows[0] >= 0 and rows[-1] < len(batch) and (np.diff(rows) >= 0).all()
        ):
            raise ValueError(
                f"ops.FlatMap wants ascending positions below {len(batch)}: which record each new one "
                "comes of"
            )
        ctx.produce("out", batch.row_keys[rows], values)
