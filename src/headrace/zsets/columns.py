"""The columns of rows, of which each is made when it is first looked at.

An operator leaves rows out and puts them in order again and again, and looks at few of their columns
before it produces them. So taking rows only composes positions. A column is copied once, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

At = npt.NDArray[np.integer[Any]]


class Places:
    """The places of rows, which several columns share."""

    __slots__ = ("_arrow", "at")

    def __init__(self, at: At) -> None:
        self.at = at
        self._arrow: pa.Array | None = None

    @property
    def arrow(self) -> pa.Array:
        """The same as Arrow."""
        if self._arrow is None:
            self._arrow = pa.array(self.at)
        return self._arrow


class LazyColumn:
    """A column that is made when it is first looked at.

    Args:
        source: an Arrow array that it is taken from; a function of places that makes it; or,
            without places, a function that makes it.
        places: the places of its rows in the source.
    """

    __slots__ = ("_found", "_places", "_source")

    def __init__(self, source: Any, places: Places | None) -> None:
        self._source, self._places = source, places
        self._found: pa.Array | None = None

    @property
    def column(self) -> pa.Array:
        """The column."""
        if self._found is None:
            if self._places is None:
                self._found = self._source()
            elif isinstance(self._source, pa.Array):
                self._found = self._source.take(self._places.arrow)
            else:
                self._found = self._source(self._places.at)
        return self._found

    def taken(self, at: Places, composed: dict[int, Places]) -> LazyColumn:
        """Return some of its rows.

        Args:
            at: their places.
            composed: the places that columns of the same places got, by the identity of these.
        """
        if self._found is not None or self._places is None:
            return LazyColumn(self.column, at)
        here = id(self._places)
        if here not in composed:
            composed[here] = Places(self._places.at[at.at])
        return LazyColumn(self._source, composed[here])


class Columns(Mapping[str, pa.Array]):
    """Columns by name.

    Args:
        parts: the columns, some of which may not be made yet.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Mapping[str, pa.Array | LazyColumn]) -> None:
        self.parts = parts

    def __getitem__(self, name: str) -> pa.Array:
        part = self.parts[name]
        return part.column if isinstance(part, LazyColumn) else part

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def take(self, at: At) -> Columns:
        """Return the rows at some places."""
        places = Places(at)
        composed: dict[int, Places] = {}
        return Columns(
            {
                name: part.taken(places, composed)
                if isinstance(part, LazyColumn)
                else LazyColumn(part, places)
                for name, part in self.parts.items()
            }
        )

    def named(self, names: Mapping[str, str]) -> Columns:
        """Return some of the columns by other names (new → old)."""
        return Columns({new: self.parts[old] for new, old in names.items()})

    def with_others(self, others: Mapping[str, pa.Array | LazyColumn]) -> Columns:
        """Return these columns and others."""
        return Columns({**self.parts, **others})


def concatenated(several: list[Columns]) -> Columns:
    """Return columns of the same names, one below the other."""

    def maker(name: str) -> Callable[[], pa.Array]:
        return lambda: pa.concat_arrays([columns[name] for columns in several])

    return Columns({name: LazyColumn(maker(name), None) for name in several[0]})
