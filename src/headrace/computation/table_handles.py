"""The handles through which columnar handlers read and change tables.

These protocols say what a handler can do. Worker processes implement them over the tables that they
have in memory; see :mod:`headrace.state.tables.table_set`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

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
