"""Aggregates whose partial results are of any size: distinct values, lists, and sketches.

Each partial result is one cell of bytes. A step that touches a group reads and writes its whole
cell, so these are for groups that stay small, or for sketches, which do by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.computation.computation import InputStream
from headrace.errors import PipelineError
from headrace.ops.aggregates import Aggregate, Partial
from headrace.ops.columns import I64, values_of, with_nulls
from headrace.schema.columns import Column, ColumnType

if TYPE_CHECKING:
    import datasketches

#: Most numbers that a cell of :class:`Quantiles` keeps beside its digest.
_LOOSE = 512
#: Stands for an empty text in a sketch, which would ignore that. Its bytes are not those of any text.
_EMPTY = -1
_MISSING = "pip install 'headrace[sketches]' where the driver and the workers run"


class Packed(Aggregate):
    """Base of aggregates with a cell of bytes; empty bytes are the partial result of no value."""

    takes = "a column that a table can keep"

    @property
    def columns(self) -> dict[str, pa.DataType]:
        return {self._column("packed"): pa.binary()}

    def _pack(self, values: Column, times: I64) -> bytes:
        """Return the partial result of at least one value, in the order of arrival."""
        raise NotImplementedError

    def _union(self, parts: Sequence[bytes]) -> bytes:
        """Return the combination of at least two partial results that are not empty, in order."""
        raise NotImplementedError

    def of_records(self, batch: KeyedBatch) -> Partial:
        return self._of_runs(batch, np.arange(len(batch)))

    def of_groups(self, batch: KeyedBatch) -> Partial:
        return self._of_runs(batch, batch.starts)

    def _of_runs(self, batch: KeyedBatch, starts: I64) -> Partial:
        values, there = values_of(batch, self.kind)
        times = batch.timestamps_us
        packed = np.full(len(starts), b"", dtype=object)
        for number, (first, after) in enumerate(_runs(starts, len(batch))):
            rows: Any = slice(first, after)
            if there is not None:
                rows = first + np.flatnonzero(there[first:after])
                if not len(rows):
                    continue
            packed[number] = self._pack(values[rows], times[rows])
        return {self._column("packed"): packed}

    def combined(self, partial: Partial, starts: I64) -> Partial:
        cells = partial[self._column("packed")]
        found = np.full(len(starts), b"", dtype=object)
        for number, (first, after) in enumerate(_runs(starts, len(cells))):
            found[number] = self._one(cells[first:after])
        return {self._column("packed"): found}

    def merged(self, one: Partial, other: Partial) -> Partial:
        pairs = zip(one[self._column("packed")], other[self._column("packed")], strict=True)
        found = np.full(len(one[self._column("packed")]), b"", dtype=object)
        for number, pair in enumerate(pairs):
            found[number] = self._one(pair)
        return {self._column("packed"): found}

    def _one(self, cells: Iterable[bytes]) -> bytes:
        parts = [cell for cell in cells if cell]
        return self._union(parts) if len(parts) > 1 else parts[0] if parts else b""


def _runs(starts: I64, length: int) -> Iterator[tuple[int, int]]:
    return zip(starts.tolist(), [*starts.tolist()[1:], length], strict=True)


class CountDistinct(Packed):
    """The number of different values of a column, exactly. An integer; 0 if there are none.

    All NaN are one value, and so are 0.0 and -0.0. Nulls do not count.

    State and cost: all distinct values of a group are kept in one cell, and a step that touches the
    group writes them again. For many values use :class:`ApproxCountDistinct`; or
    :class:`headrace.ops.Dedup` by key and value, and a :class:`headrace.ops.Count` behind it.

    Example::

        users = hr.ops.Tumbling("1h", users=hr.ops.CountDistinct("user"))
        p.compute("users", users, keys={hits: "page"})
    """

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, pa.int64(), nullable=False)

    def _pack(self, values: Column, times: I64) -> bytes:
        return _encoded(_distinct(values))

    def _union(self, parts: Sequence[bytes]) -> bytes:
        values = np.concatenate([_decoded(part, self.kind) for part in parts])
        return _encoded(_distinct(values))

    def result(self, partial: Partial) -> Column:
        cells = partial[self._column("packed")]
        return np.array([len(_decoded(cell, self.kind)) for cell in cells], dtype=np.int64)


class Collect(Packed):
    """The values of a column as a list, by event time, and at equal times as they arrived.

    Nulls are left out. The list is empty if there are no values.

    Args:
        column: the column.
        most: keep only so many, the earliest; by default all.

    State and cost: the list of a group is kept in one cell, and a step that touches the group
    writes it again. Bound it by ``most`` or by windows.

    Example::

        paths = hr.ops.Session("30m", pages=hr.ops.Collect("page", most=100))
        p.compute("paths", paths, keys={hits: "user"})

    Raises:
        PipelineError: if ``most`` is not positive.
    """

    def __init__(self, column: str, *, most: int | None = None) -> None:
        super().__init__(column)
        if most is not None and most < 1:
            raise PipelineError(f"most={most} keeps nothing", place="ops.Collect")
        self._most = most

    @property
    def field(self) -> pa.Field:
        values = pa.field("item", self.kind.arrow, nullable=False)
        return pa.field(self.name, pa.list_(values), nullable=False)

    def _pack(self, values: Column, times: I64) -> bytes:
        order = np.argsort(times, kind="stable")[: self._most]
        return msgspec.msgpack.encode((times[order].tobytes(), _encoded(values[order])))

    def _union(self, parts: Sequence[bytes]) -> bytes:
        opened = [self._opened(part) for part in parts]
        times = np.concatenate([one for one, _ in opened])
        return self._pack(np.concatenate([values for _, values in opened]), times)

    def _opened(self, cell: bytes) -> tuple[I64, Column]:
        if not cell:
            return np.empty(0, np.int64), self.kind.new(0)
        times, values = msgspec.msgpack.decode(cell, type=tuple[bytes, bytes])
        return np.frombuffer(times, np.int64), _decoded(values, self.kind)

    def result(self, partial: Partial) -> pa.Array:
        lists = [self._opened(cell)[1] for cell in partial[self._column("packed")]]
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int32)
        values = self.kind.to_arrow(np.concatenate([self.kind.new(0), *lists]))
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=self.field.type)


class _Sketch(Packed):
    """Base of aggregates that keep a sketch of the kept library DataSketches."""

    def bound(self, name: str, stream: InputStream, place: str) -> Self:
        try:
            import datasketches  # noqa: F401
        except ImportError as error:
            raise PipelineError(
                f"{type(self).__name__} needs the package datasketches",
                place=place,
                remedy=_MISSING,
            ) from error
        return super().bound(name, stream, place)


class ApproxCountDistinct(_Sketch):
    """About how many different values a column has, by a HyperLogLog sketch. An integer.

    Nulls do not count. Counting is exact for few values; from some hundred on the standard error is
    ``1.04 / sqrt(2**lg_k)``.

    Args:
        column: the column.
        lg_k: the binary logarithm of the number of registers, from 4 to 21. With 12 the error is
            1.6 %, and a sketch takes at most 2.6 kB.

    Guarantees: the estimate does not depend on how the input was divided into steps.

    Needs the extra ``headrace[sketches]`` (Apache DataSketches).

    Example::

        users = hr.ops.Tumbling("1h", users=hr.ops.ApproxCountDistinct("user"))
        p.compute("users", users, keys={hits: "page"})

    Raises:
        PipelineError: for another ``lg_k``; when the pipeline is built, if the extra is missing.
    """

    def __init__(self, column: str, *, lg_k: int = 12) -> None:
        super().__init__(column)
        if not 4 <= lg_k <= 21:
            raise PipelineError(f"lg_k={lg_k} is not from 4 to 21", place="ops.ApproxCountDistinct")
        self._lg_k = lg_k

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, pa.int64(), nullable=False)

    def _pack(self, values: Column, times: I64) -> bytes:
        import datasketches as ds

        sketch = ds.hll_sketch(self._lg_k, ds.tgt_hll_type.HLL_8)
        for value in _hashable(_distinct(values)):
            sketch.update(value)
        return self._stored([sketch])

    def _union(self, parts: Sequence[bytes]) -> bytes:
        import datasketches as ds

        return self._stored([ds.hll_sketch.deserialize(part) for part in parts])

    def _stored(self, sketches: Sequence[datasketches.hll_sketch]) -> bytes:
        """Return sketches as one, in a form that depends on their values alone."""
        import datasketches as ds

        union = ds.hll_union(self._lg_k)
        for sketch in sketches:
            union.update(sketch)
        stored: bytes = union.get_result(ds.tgt_hll_type.HLL_4).serialize_compact()
        return stored

    def result(self, partial: Partial) -> Column:
        return np.array(
            [self._estimate(cell) for cell in partial[self._column("packed")]], dtype=np.int64
        )

    def _estimate(self, cell: bytes) -> int:
        import datasketches as ds

        if not cell:
            return 0
        # A sketch also knows an estimate that depends on the order of its values. After a union
        # with another one it goes by its registers alone.
        union = ds.hll_union(self._lg_k)
        union.update(ds.hll_sketch.deserialize(cell))
        union.update(ds.hll_sketch.deserialize(cell))
        return round(float(union.get_estimate()))


class Quantiles(_Sketch):
    """About which values divide a column of numbers at given ranks, by a t-digest. Floats.

    The result is a list, one value for each rank; with a single rank that is not in a list, it is a
    float. It is null if there are no values. NaN and nulls are skipped.

    Args:
        column: a column of numbers.
        at: the ranks, from 0 to 1: 0.5 is the median.
        k: how precise it is. With 200, the rank of a result is off by at most about 1.5 % in the
            middle and 0.1 % at both ends. A cell takes at most 9 kB: a digest, and the newest 512
            numbers.

    A t-digest computes the same from the same records in the same steps, which sketches that draw
    random numbers, such as KLL, do not. What it computes depends a little on how the input was
    divided into steps.

    Needs the extra ``headrace[sketches]`` (Apache DataSketches).

    Example::

        latency = hr.ops.Tumbling("1m", ms=hr.ops.Quantiles("ms", [0.5, 0.99]))
        p.compute("latency", latency, keys={hits: "page"})

    Raises:
        PipelineError: for other ranks; when the pipeline is built, if the extra is missing.
    """

    takes = "a column of numbers"

    def __init__(self, column: str, at: float | Sequence[float], *, k: int = 200) -> None:
        super().__init__(column)
        self._single = isinstance(at, int | float)
        self._ranks = [float(at)] if isinstance(at, int | float) else [float(one) for one in at]
        wrong = [rank for rank in self._ranks if not 0 <= rank <= 1]
        if wrong or not self._ranks or not 10 <= k <= 65_535:
            what = f"at={at!r}, k={k}: ranks are from 0 to 1, and k is from 10 to 65,535"
            raise PipelineError(what, place="ops.Quantiles")
        self._k = k

    def _fits(self, kind: pa.DataType) -> bool:
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))

    @property
    def field(self) -> pa.Field:
        if self._single:
            return pa.field(self.name, pa.float64(), nullable=True)
        values = pa.field("item", pa.float64(), nullable=False)
        return pa.field(self.name, pa.list_(values), nullable=True)

    def _pack(self, values: Column, times: I64) -> bytes:
        numbers = values.astype(np.float64)
        numbers = numbers[~np.isnan(numbers)]
        return self._stored([], [numbers]) if len(numbers) else b""

    def _union(self, parts: Sequence[bytes]) -> bytes:
        opened = [msgspec.msgpack.decode(part, type=tuple[bytes, bytes]) for part in parts]
        digests = [digest for digest, _ in opened if digest]
        return self._stored(digests, [np.frombuffer(loose, np.float64) for _, loose in opened])

    def _stored(self, digests: Sequence[bytes], loose: Sequence[Column]) -> bytes:
        """Return digests and loose numbers as one cell.

        Each merge costs some precision. So numbers stay loose until there are many.
        """
        numbers = np.concatenate(loose)
        if len(numbers) <= _LOOSE and len(digests) < 2:
            return msgspec.msgpack.encode((digests[0] if digests else b"", numbers.tobytes()))
        digest = self._digest(digests, numbers)
        return msgspec.msgpack.encode((bytes(digest.serialize()), b""))

    def _digest(self, digests: Sequence[bytes], numbers: Column) -> datasketches.tdigest_double:
        import datasketches as ds

        whole = ds.tdigest_double(self._k)
        for digest in digests:
            whole.merge(ds.tdigest_double.deserialize(digest))
        if len(numbers):
            whole.update(numbers.copy())  # (a view of bytes is refused)
        return whole

    def result(self, partial: Partial) -> pa.Array:
        cells = partial[self._column("packed")]
        found = [self._at_ranks(cell) for cell in cells]
        there = np.array([bool(cell) for cell in cells], dtype=np.bool_)
        if self._single:
            return with_nulls(pa.array([one for (one,) in found], pa.float64()), there)
        return with_nulls(pa.array(found, self.field.type), there)

    def _at_ranks(self, cell: bytes) -> list[float]:
        if not cell:
            return [math.nan] * len(self._ranks)
        stored, loose = msgspec.msgpack.decode(cell, type=tuple[bytes, bytes])
        digest = self._digest([stored] if stored else [], np.frombuffer(loose, np.float64))
        return [float(digest.get_quantile(rank)) for rank in self._ranks]


# -- values in cells --------------------------------------------------------------------------


def _distinct(values: Column) -> Column:
    """Return the different values, sorted."""
    if values.dtype == object:
        found = np.empty(len(set(values.tolist())), dtype=object)
        found[:] = sorted(set(values.tolist()))
        return found
    found = np.unique(values)
    return found + 0.0 if found.dtype.kind == "f" else found  # (-0.0 becomes 0.0)


def _encoded(values: Column) -> bytes:
    if values.dtype == object:
        return msgspec.msgpack.encode(values.tolist())
    return values.tobytes()


def _decoded(cell: bytes, kind: ColumnType) -> Column:
    if not cell:
        return kind.new(0)
    if kind.dtype != object:
        return np.frombuffer(cell, kind.dtype)
    plain = msgspec.msgpack.decode(cell)
    found = np.empty(len(plain), dtype=object)
    found[:] = plain
    return found


def _hashable(values: Column) -> list[Any]:
    """Return values as a sketch takes them: integers, floats and texts."""
    if values.dtype == object:
        texts = [value.hex() if isinstance(value, bytes) else value for value in values.tolist()]
        return [text or _EMPTY for text in texts]
    if values.dtype.kind in "fiu":
        plain: list[Any] = values.tolist()
        return plain
    return [int(value) for value in values.astype(np.int64)]
