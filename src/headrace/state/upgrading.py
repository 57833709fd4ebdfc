"""Rows that older code stored, upgraded to today's declarations when they are read.

If a state has versions, each row has its version in a column of its own; a row without one is of
version 1. So it does not matter which file a row is in, or how it came there. Slices, state that no
code declared for some time, and rows that were read ahead may all contain older rows. State without
versions has no such column, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors.user_code import goes_on, user_error
from headrace.runfiles.sections import CELL, SUB_PREFIX, VALUE, VERSION, column_name
from headrace.schema.codecs import StateCodec
from headrace.schema.columns import Column, ColumnType
from headrace.schema.upgrades import Upgrade

Mask = npt.NDArray[np.bool_]
FIRST_VERSION = 1


class ValueUpgrades:
    """Upgrades of the encoded values of one state.

    Args:
        codec: the codec of today's values.
        version: today's version.
        upgrades: the upgrades, by the version from which they start.
        place: the name of the state, for messages.
    """

    def __init__(
        self, codec: StateCodec, version: int, upgrades: Mapping[int, Upgrade], *, place: str
    ) -> None:
        self.version = version
        self._codec = codec
        self._place = place
        self._from = {
            older: (upgrade.state_codec(place), upgrade.convert)
            for older, upgrade in upgrades.items()
        }

    def upgraded(self, data: bytes, version: int, of: str = "") -> bytes | None:
        """Return a value of an older version as it is stored today. None if it is given up.

        Args:
            data: the stored value.
            version: its version.
            of: the name of the key, for messages.

        Raises:
            UserCodeError: if the user's function raises, or returns a value that the state cannot
                hold.
        """
        codec, convert = self._from[version]
        if convert is None:
            return None
        try:
            return self._codec.encode(convert(codec.decode(data)))
        except BaseException as error:
            raise_in_upgrade(error, f"{self._place}{of}", version, self.version)


def raise_in_upgrade(error: BaseException, place: str, older: int, version: int) -> NoReturn:
    """Raise an exception of an upgrade function again, with its place.

    Exceptions that are not the user's, such as an interrupt, are raised unchanged.

    Raises:
        UserCodeError: from any other exception.
    """
    if goes_on(error):
        raise error
    raise user_error(
        error,
        place,
        "fix the upgrade function and start again: the step was not committed, nothing is lost; "
        "older code can go on from a copy of a step before this code came (headrace checkpoint copy)",
        f"the upgrade from version {older} to {version} failed",
    ) from error


class CellRows:
    """Upgrades of the rows of a per-record computation's cells.

    Args:
        upgrades: those of the states that have versions, by name.
        key_of: returns the name of a row's key, for messages.
    """

    def __init__(
        self, upgrades: Mapping[str, ValueUpgrades], key_of: Callable[[pa.Table], str]
    ) -> None:
        self._upgrades = upgrades
        self._key_of = key_of

    def as_declared(self, table: pa.Table) -> pa.Table:
        """Return rows as they are declared today, without those that are given up."""
        if not self._upgrades:
            return table
        versions = versions_of(table)
        names = np.array(table.column(CELL).to_pylist(), dtype=object)
        is_live = pc.is_valid(table.column(VALUE)).to_numpy()
        values, stays = None, np.ones(table.num_rows, dtype=np.bool_)
        for name, upgrades in self._upgrades.items():
            old = np.flatnonzero((names == name) & (versions < upgrades.version) & is_live)
            for row in old.tolist():
                values = table.column(VALUE).to_pylist() if values is None else values
                key = self._key_of(table.slice(row, 1))
                values[row] = upgrades.upgraded(values[row], int(versions[row]), key)
                stays[row] = values[row] is not None
            versions[old] = upgrades.version
        if values is None:
            return table
        table = _with(table, VALUE, pa.array(values, pa.binary()))
        return _with(table, VERSION, pa.array(versions)).filter(pa.array(stays))


class StoredTableRows:
    """Upgrades of the rows of one table of a columnar computation.

    Args:
        sub: the sub columns.
        columns: the other columns.
        version: today's version.
        upgrades: the upgrades, by the version from which they start.
        place: the name of the table, for messages.
    """

    def __init__(
        self,
        sub: Sequence[ColumnType],
        columns: Sequence[ColumnType],
        version: int,
        upgrades: Mapping[int, Upgrade],
        *,
        place: str,
    ) -> None:
        self._sub, self._columns = sub, columns
        self._version = version
        self._upgrades = upgrades
        self._place = place
        self._names = [column_name(kind.name, version) for kind in columns]

    def as_declared(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return stored rows as they are declared today, with the columns of a schema."""
        if table.schema.equals(schema):
            names = [name for name in self._names if table.column(name).null_count]
            if not names and not (self._version > 1 and table.column(VERSION).null_count):
                return table
        versions = versions_of(table)
        today = table.filter(pa.array(versions == self._version))
        parts = [_filled(today, self._columns, self._names)]
        for older in np.unique(versions[versions < self._version]).tolist():
            rows = table.filter(pa.array(versions == older))
            parts += [] if (new := self._upgraded(rows, older)) is None else [new]
        found = pa.concat_tables([self._shaped(part, schema) for part in parts])
        if len(parts) > 1:
            order = np.argsort(found.column(schema.names[0]).to_numpy(), kind="stable")
            found = found.take(pa.array(order))
        return found.combine_chunks()

    def _upgraded(self, table: pa.Table, older: int) -> pa.Table | None:
        convert = self._upgrades[older].convert
        if convert is None:
            return None
        try:
            new = convert(self._given(table, older))
            columns = [kind.coerced(new[kind.name], table.num_rows) for kind in self._columns]
            extra = sorted(set(new) - {kind.name for kind in self._columns})
            if extra:
                raise TypeError(f"it returned columns that the table does not have: {extra}")
        except BaseException as error:
            place = f"{self._place}, {table.num_rows} rows"
            raise_in_upgrade(error, place, older, self._version)
        for kind, name, column in zip(self._columns, self._names, columns, strict=True):
            table = _with(table, name, kind.to_arrow(column))
        return table

    def _given(self, table: pa.Table, older: int) -> dict[str, Column]:
        """Return what an upgrade function gets: the columns of an older version, by name."""
        given = {
            kind.name: kind.from_arrow(table.column(SUB_PREFIX + kind.name)) for kind in self._sub
        }
        reads, prefix = self._upgrades[older].reads, column_name("", older)
        if reads is not None:
            _, columns = reads.column_types(place=self._place)
            names = [column_name(kind.name, older) for kind in columns]
            table = _filled(table, columns, names)
        else:
            names = [name for name in table.column_names if name.startswith(prefix)]
            names = [name for name in names if not table.column(name).null_count]
            columns = [ColumnType(n.removeprefix(prefix), table.column(n).type) for n in names]
        for kind, name in zip(columns, names, strict=True):
            given[kind.name] = kind.from_arrow(table.column(name))
        return given

    def _shaped(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        if self._version > FIRST_VERSION:
            version = np.full(table.num_rows, self._version, dtype=np.uint16)
            table = _with(table, VERSION, pa.array(version))
        return pa.Table.from_arrays([table.column(name) for name in schema.names], schema=schema)


def versions_of(table: pa.Table) -> npt.NDArray[np.uint16]:
    """Return the version of each row of a section."""
    if VERSION not in table.column_names:
        return np.full(table.num_rows, FIRST_VERSION, dtype=np.uint16)
    filled = pc.fill_null(table.column(VERSION), pa.scalar(FIRST_VERSION, pa.uint16()))
    return np.array(filled.to_numpy(), dtype=np.uint16)


def _filled(table: pa.Table, columns: Sequence[ColumnType], names: Sequence[str]) -> pa.Table:
    """Return rows with all columns, and with the declared values where older rows lack one."""
    for kind, name in zip(columns, names, strict=True):
        filling = kind.empty if kind.added is None else kind.added
        (value,) = kind.to_arrow(np.array([filling], dtype=kind.dtype))
        if name not in table.column_names:
            table = table.append_column(name, pa.repeat(value, table.num_rows))
        elif table.column(name).null_count:
            table = _with(table, name, pc.fill_null(table.column(name), value))
    return table


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    if name not in table.column_names:
        return table.append_column(name, column)
    return table.set_column(table.column_names.index(name), name, column)
