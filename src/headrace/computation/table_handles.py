"""The handles through which columnar handlers read and change tables.

These protocols say what a handler can do. Worker processes implement them over the tables that they
have in memory; see :mod:`headrace.state.tables.table_set`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.computation.batches import Keys

Mask = npt.NDArray[np.bool_]


class TableRows(Protocol):
    """Some rows of a table, as they are now: found once, then read and changed by column.

    Example::

        def process_batch(self, ctx, batch):
            rows = self.counts.at(batch.keys)
            rows.upsert(visits=rows["visits"] + batch.counts)
            rows.delete(where=rows["visits"] >= 100)
    """

    def __len__(self) -> int:
        """Return how many rows were asked for, whether or not they exist."""
        ...

    @property
    def exists(self) -> Mask:
        """Whether each of the rows exists."""
        ...

    def __getitem__(self, name: str) -> Any:
        """Return a column of the rows; zero or empty for rows that do not exist."""
        ...

    def upsert(self, **columns: Any) -> None:
        """Write the rows: create those that do not exist, and change the others.

        Args:
            columns: an array, or one value for all rows, for each column to be written. Other
                columns keep their values.

        Raises:
            ValueError: if a row occurs twice among the keys.
            TypeError: for a column that the table does not have, or values of another type.
        """
        ...

    def delete(self, where: Mask | None = None) -> None:
        """Delete all of the rows, or some. Rows that do not exist are ignored."""
        ...


class TableHandle(Protocol):
    """A ``TableState`` as handlers see it.

    Example::

        def process_batch(self, ctx, batch):
            rows = self.counts.at(batch.keys)
            new = batch.keys[~rows.exists]
            ctx.produce("new", new, np.ones(len(new), dtype=np.int64))
            rows.upsert(visits=rows["visits"] + batch.counts)
    """

    def at(self, keys: Keys, **sub: Any) -> TableRows:
        """Return the rows of some keys.

        Args:
            keys: keys from the batch.
            sub: an array, or one value for all keys, for each sub column of a table with ``sub``.

        Raises:
            TypeError: if the sub columns are not the declared ones.
        """
        ...


class ZSetRows(Protocol):
    """Rows that a Z-set holds for some keys.

    Attributes:
        at: for each row, the position of its key.
        weights: the weight of each row.
        hashes: a hash of each row's columns; see :mod:`headrace.keyspace.row_hashing`.
        names: the names of the columns.

    Example::

        held = self.open.of_keys(batch.keys)
        totals = np.bincount(held.at, held["cents"] * held.weights, minlength=len(batch.keys))
    """

    at: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    names: list[str]

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def __getitem__(self, name: str) -> Any:
        """Return a column, or a sum, as NumPy. A null reads as zero or empty."""
        ...

    def nulls(self, name: str) -> Mask:
        """Return which rows are null in a column."""
        ...

    def arrow(self, name: str) -> pa.Array:
        """Return a column as Arrow, with its nulls."""
        ...


class ZSetChange(Protocol):
    """What :meth:`ZSetHandle.add` found and left, row by row.

    Attributes:
        before, after: the weights. A row that does not exist has the weight 0.
        sums_before, sums_after: the sums of each row, by name.
    """

    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    sums_before: Mapping[str, Any]
    sums_after: Mapping[str, Any]


class ZSetHandle(Protocol):
    """A ``ZSetState`` as handlers see it.

    Example::

        def process_batch(self, ctx, batch):
            change = self.seen.add(batch.row_keys, {"user": batch.arrow("user")}, 1)
            new = (change.before <= 0) & (change.after > 0)
            ctx.produce("new", batch.row_keys[new], batch["user"][new])
    """

    def add(
        self,
        keys: Keys,
        rows: Mapping[str, Any],
        weights: Any,
        sums: Mapping[str, Any] | None = None,
    ) -> ZSetChange:
        """Add to the weights of rows, and to their sums. A row of which nothing is left is removed.

        Args:
            keys: the key of each row.
            rows: name → Arrow or NumPy array, for each column.
            weights: what is added to each row's weight: an array, or one number.
            sums: name → what is added to each row's sum, for each sum.

        Raises:
            ValueError: if a row occurs twice among the given ones.
            TypeError: for columns or sums that are not the declared ones, or of another type.
            OverflowError: if a weight is beyond 64 bits, or a sum beyond what it is declared as.
        """
        ...

    def of_keys(self, keys: Keys) -> ZSetRows:
        """Return all rows of some keys, by the position of their key and then by hash.

        Costs these rows, and a few look-ups for each key.

        Args:
            keys: the keys, each once.

        Raises:
            ValueError: if a key occurs twice.
        """
        ...
