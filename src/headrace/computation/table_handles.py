"""The handles by which columnar handlers read and change tables.

What is here says what a handler can do. Worker processes implement it over the tables that they have in
memory: see :mod:`headrace.state.tables.table_set`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.computation.batches import Keys

Mask = npt.NDArray[np.bool_]


class TableRows(Protocol):
    """Some rows of a table, as they are now: found once, read and changed by column."""

    def __len__(self) -> int:
        """Return how many rows were asked for, whether they exist or not."""
        ...

    @property
    def exists(self) -> Mask:
        """For each of the keys, whether there is a row."""
        ...

    def __getitem__(self, name: str) -> Any:
        """Return a column of the rows; zero or empty where there is no row."""
        ...

    def upsert(self, **columns: Any) -> None:
        """Write the rows: those that do not exist are created, the others change.

        Args:
            columns: an array (or one value for all) for each column that is written; columns that
                are not named keep what they were.

        Raises:
            ValueError: when a row comes twice among the keys.
            TypeError: for a column that the table does not have, or values of another type.
        """
        ...

    def delete(self, where: Mask | None = None) -> None:
        """Delete the rows, or some of them; those that do not exist are left alone."""
        ...


class TableHandle(Protocol):
    """A ``TableState`` as handlers see it."""

    def at(self, keys: Keys, **sub: Any) -> TableRows:
        """Find the rows of some keys.

        Args:
            keys: from the batch.
            sub: for a table with ``sub``, an array (or one value for all) for each sub column.

        Raises:
            TypeError: when the sub columns are not those declared.
        """
        ...
