"""Stored state as columns that can be read without the user's code.

Values of per-record state are msgpack, which describes itself, so they become JSON text. Values
that the user's own codec wrote stay bytes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.checkpoints.components import TIMERS, WORKERS, Component
from headrace.computation.declarations import hold_cell
from headrace.computation.record_ids import IDS
from headrace.ledger.head import Head
from headrace.runfiles.sections import (
    CELL,
    CELLS,
    DUE,
    EXPIRES,
    EXPIRES_WALL,
    SUB,
    SUB_PREFIX,
    VALUE,
    is_column,
    table_section,
)

TIME = pa.timestamp("us", tz="UTC")
_KINDS = ("value", "list", "map")
_CODEC = "codec"
_VERSION = re.compile(r" version \d+$")
_PLAIN = (str, int, float, bool, type(None))

#: Columns of a per-record computation's state, after the key's columns.
_STATE = [
    pa.field("state", pa.string(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),
    pa.field("sub", pa.string()),
    pa.field("value", pa.string()),
    pa.field("bytes", pa.binary()),
]
_TIMERS = [
    pa.field("timer", pa.string(), nullable=False),
    pa.field("tag", pa.string(), nullable=False),
    pa.field("domain", pa.string(), nullable=False),
    pa.field("time", TIME, nullable=False),
    pa.field("hold", TIME),
]
_WORKERS = [
    pa.field("worker", pa.int64(), nullable=False),
    pa.field("state", pa.string(), nullable=False),
    pa.field("value", pa.string()),
    pa.field("bytes", pa.binary()),
]


def stored_section(section: str) -> str:
    """Return the section of files from which a readable section is made."""
    return CELLS if section == TIMERS else section


def schema_of(component: Component, section: str, stored: pa.Schema | None) -> pa.Schema:
    """Return the columns with which a section is read.

    Args:
        component: the computation.
        section: one of its sections.
        stored: the section's columns in files; None if no file has any of it.
    """
    if section == WORKERS:
        return pa.schema(_WORKERS)
    keys = _key_fields(component)
    if section in (CELLS, TIMERS):
        state = [*_STATE, pa.field("expires", TIME)] if component.expiring else _STATE
        return pa.schema([*keys, *(state if section == CELLS else _TIMERS)])
    if stored is None:
        return pa.schema(keys)
    names = _readable_names(component, section, stored.names)
    own = [pa.field(new, _type_of(old, stored.field(old).type)) for old, new in names.items()]
    return pa.schema([*keys, *own])


def readable(component: Component, section: str, rows: pa.Table) -> pa.Table:
    """Return the live rows of a section, in columns for people and tools."""
    schema = schema_of(component, section, rows.schema)
    if section in (CELLS, TIMERS):
        return (_state if section == CELLS else _timers)(component, rows, schema)
    names = [*_stored_keys(component), *_readable_names(component, section, rows.column_names)]
    columns = [rows.column(name).cast(kind.type) for name, kind in zip(names, schema, strict=True)]
    return pa.table(columns, schema=schema)


def identity_of(component: Component, section: str, stored: pa.Schema | None) -> list[str]:
    """Return the columns that identify a row of a section. They are the same at every step."""
    if section == WORKERS:
        return ["worker", "state"]
    own = {CELLS: ["state", "kind", "sub"], TIMERS: ["timer", "tag"]}.get(section)
    if own is None:
        names = {} if stored is None else _readable_names(component, section, stored.names)
        own = [new for old, new in names.items() if old.startswith(SUB_PREFIX)]
    return [*component.key_names, *own]


def held_by_workers(component: Component, head: Head) -> pa.Table:
    """Return the per-worker values of a computation."""
    rows = [
        (worker, name, *_decoded_value(component.state.get(name, ""), data))
        for worker, held in sorted(head.per_worker.get(component.name, {}).items())
        for name, data in sorted(held.values.items())
    ]
    return _table(rows, pa.schema(_WORKERS))


def _key_fields(component: Component) -> list[pa.Field]:
    pairs = zip(component.key_names, component.key_types, strict=True)
    return [pa.field(name, kind, nullable=False) for name, kind in pairs]


def _stored_keys(component: Component) -> list[str]:
    return [f"key{i}" for i in range(len(component.key))]


def _readable_names(component: Component, section: str, stored: list[str]) -> dict[str, str]:
    """Return the readable names of the columns of a table, timer, buffer or memory of ids.

    The prefix of a stored name is dropped, unless the rest is taken: by a part of the key, or by
    the column of a newer version. A table's times of expiry are left out.
    """
    timed = section != IDS and not section.startswith(table_section(""))
    taken = [*component.key_names, *(["time"] if timed else [])]
    found: dict[str, str] = {}
    wanted = [name for name in stored if name.startswith(SUB_PREFIX) or is_column(name)]
    for name in sorted(wanted, key=_version_of, reverse=True):
        plain = name.partition(":")[2]
        found[name] = name if plain in taken else plain
        taken.append(plain)
    ordered = {name: found[name] for name in wanted}
    return {**ordered, DUE: "time"} if timed and DUE in stored else ordered


def _version_of(column: str) -> int:
    """Return the version of its table that a column belongs to, from its name in files."""
    version = column.partition(":")[0].partition("@")[2]
    return int(version) if version else 1


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema; null in columns that older files do not have."""
    columns = [
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _type_of(name: str, kind: pa.DataType) -> pa.DataType:
    return TIME if name == DUE else kind


def _state(component: Component, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the values, elements and entries among cells."""
    decoded: list[tuple[Any, ...]] = []

    def accepts(cell: str, sub: bytes, value: bytes) -> bool:
        described = component.state.get(cell, "")
        kind = described.partition(" ")[0]
        if kind not in _KINDS:
            return False
        decoded.append((cell, kind, _sub_of(kind, sub), *_decoded_value(described, value)))
        return True

    chosen, decoded_of = _with_keys(component, rows, accepts, decoded, schema)
    if not component.expiring:
        return decoded_of
    names = [name for name in (EXPIRES, EXPIRES_WALL) if name in rows.column_names]
    expires = pc.coalesce(*(rows.column(name).take(chosen) for name in names)) if names else None
    column = pa.nulls(len(chosen), TIME) if expires is None else expires.cast(TIME)
    return pa.table([*decoded_of.columns, column], schema=schema)


def _timers(component: Component, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the pending timers among cells, each with its hold, if it has one."""
    domains = {
        name: described.split(" ")[1]
        for name, described in component.state.items()
        if described.startswith("timer ")
    }
    holding = {hold_cell(name): name for name in domains}
    columns = [rows.column(name).to_pylist() for name in _stored_keys(component)]
    keys = list(zip(*columns, strict=True))
    cells = [rows.column(name).to_pylist() for name in (CELL, SUB, VALUE)]
    entries = list(zip(keys, *cells, strict=True))
    holds = {
        (key, holding[cell], sub): int.from_bytes(value, "little", signed=True)
        for key, cell, sub, value in entries
        if cell in holding
    }
    decoded: list[tuple[Any, ...]] = []

    def accepts(cell: str, sub: bytes, value: bytes) -> bool:
        if cell not in domains:
            return False
        time = int.from_bytes(value, "little", signed=True)
        decoded.append((cell, sub.decode(), domains[cell], time))
        return True

    chosen = [number for number, entry in enumerate(entries) if accepts(*entry[1:])]
    pairs = zip(chosen, decoded, strict=True)
    found = [(*keys[n], *row, holds.get((keys[n], row[0], entries[n][2]))) for n, row in pairs]
    return _table(found, schema)


def _with_keys(
    component: Component,
    rows: pa.Table,
    accepts: Callable[[str, bytes, bytes], bool],
    decoded: list[tuple[Any, ...]],
    schema: pa.Schema,
) -> tuple[pa.Array, pa.Table]:
    """Return the numbers of the rows that ``accepts`` accepts, and these rows behind their keys."""
    cells = zip(*(rows.column(name).to_pylist() for name in (CELL, SUB, VALUE)), strict=True)
    chosen = pa.array([n for n, cell in enumerate(cells) if accepts(*cell)], pa.int64())
    keys = [rows.column(name).take(chosen) for name in _stored_keys(component)]
    fields = [*list(schema)[: len(keys)], *_STATE]
    own = _table(decoded, pa.schema(_STATE))
    return chosen, pa.table([*keys, *own.columns], schema=pa.schema(fields))


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _sub_of(kind: str, sub: bytes) -> str | None:
    """Return what identifies an entry of a state: a map's key as JSON, or an element's position."""
    if kind == "value":
        return None
    return str(int.from_bytes(sub, "big")) if kind == "list" else as_json(sub)


def _decoded_value(described: str, data: bytes) -> tuple[str | None, bytes | None]:
    """Return a stored value as JSON text, or as bytes if the user's own codec wrote it."""
    if _VERSION.sub("", described).split(" ")[-2:-1] == [_CODEC]:
        return None, data
    text = as_json(data)
    return text, data if text is None else None


def as_json(data: bytes) -> str | None:
    """Return msgpack as JSON text; None for bytes that are not msgpack.

    >>> as_json(msgspec.msgpack.encode({(1, 2): "a"}))
    '[[[1,2],"a"]]'
    """
    try:
        value = msgspec.msgpack.decode(data)
        return msgspec.json.encode(_plain(value)).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _plain(value: Any) -> Any:
    """Return a value in a form that JSON can show.

    Mappings with keys other than text become lists of pairs, bytes become base64.
    """
    if isinstance(value, float) and value - value != 0:
        return str(value)  # (JSON has no names for infinities and NaN)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "data": base64.b64encode(value.data).decode()}
    return value
