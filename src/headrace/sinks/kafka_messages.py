"""What rows become in Kafka: keys, values, headers, partitions and times of messages."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError, UserCodeError
from headrace.messages import MessageFormat, Raw, Text, Unreadable
from headrace.runfiles.batches import one_array
from headrace.sinks.table_columns import last_of_each_key

#: Rows that are encoded at once.
PORTION_ROWS = 1 << 13
#: The partition by which the client chooses one.
ANY_PARTITION = -1
#: What the names of Headrace's own headers begin with.
OWN_HEADERS = "hr-"

_OUR_KEY = re.compile(r"_*key\d*")
_OUR_TIME = re.compile(r"_*timestamp")

Header = tuple[str, str | bytes | None]
Columns = dict[str, str]


class Options(msgspec.Struct, frozen=True):
    """Which columns of a stream become which parts of messages, as the user has said it.

    Attributes:
        format: how values are written.
        key_formats: how keys of one column are written, and those of several.
        topic: where messages go; None if a column says so.
        topic_column: that column.
        own_key: whether the key is that of the stream.
        key: the columns of another key; empty for none.
        value: the columns of the value, by their names there; None for all.
        upsert: whether a message replaces those of the same key before it.
        deletes: the column that is true for a row that deletes its key.
        partition: the column that says the partition.
        headers: the columns of headers by their names there, or the column that has all headers.
        event_time: whether the time of a message is the event time.
    """

    format: MessageFormat
    key_formats: tuple[MessageFormat, MessageFormat]
    topic: str | None = None
    topic_column: str | None = None
    own_key: bool = True
    key: Sequence[str] = ()
    value: Columns | None = None
    upsert: bool = False
    deletes: str | None = None
    partition: str | None = None
    headers: Columns | str | None = None
    event_time: bool = True


class Portion(msgspec.Struct, frozen=True):
    """Some messages to one topic, part by part.

    Attributes:
        topic: where they go.
        rows: the rows from which they are made.
        keys, values: their bytes; None for no key, and for a tombstone.
        partitions: the partition of each; :data:`ANY_PARTITION` to let the client choose.
        times: in milliseconds since 1970; 0 for the time at which a message is sent.
        headers: the headers of each; None for none.
    """

    topic: str
    rows: pa.Table
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    partitions: Sequence[int]
    times: Sequence[int]
    headers: Sequence[list[Header] | None]


class _Part(NamedTuple):
    """How a part of messages is written, and of which columns."""

    format: MessageFormat
    schema: pa.Schema


class MessageColumns:
    """Turns rows with certain columns into messages.

    Args:
        options: what the user wants.
        columns: the columns of the rows.

    Attributes:
        columns: the columns of the rows.
        key: the columns of the key.

    Raises:
        PipelineError: if they cannot become messages.
    """

    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.columns = columns
        self._options = options
        *own_key, self._time = _own_columns(columns)
        self.key: list[str] = own_key if options.own_key else list(options.key)
        self._value = _value_columns(options, columns)
        # A row deletes its key if all of these are null.
        self._content = [c for c in self._value.values() if c not in self.key and c != self._time]
        self._key_format = options.key_formats[len(self.key) > 1]
        self._header_of = _header_maker(options.headers, columns)
        self._formats: dict[str, dict[str, MessageFormat]] = {}
        self._check()

    def _check(self) -> None:
        options = self._options
        self._check_column("topic_column", options.topic_column, _is_text, "texts")
        self._check_column("partition", options.partition, pa.types.is_integer, "integers")
        self._check_column("deletes", options.deletes, pa.types.is_boolean, "booleans")
        for name in self.key:
            self._check_column("key", name)
        if options.upsert and not self.key:
            raise PipelineError(
                'mode="upsert" without a key', remedy="name the columns of the key: key=[…]"
            )
        for part, of in self._parts().items():
            of.format.check_can_hold({field.name: field.type for field in of.schema})
            if isinstance(of.format, Raw | Text):  # (they look at nothing else)
                of.format.open(options.topic or "", part, of.schema)

    def _check_column(
        self, option: str, name: str | None, fits: Callable[[Any], bool] | None = None, of: str = ""
    ) -> None:
        if name is None:
            return
        _check_named(option, name, self.columns)
        if fits is not None and not fits(self.columns.field(name).type):
            raise PipelineError(
                f"{option}={name!r}: the column is of type {self.columns.field(name).type}",
                remedy=f"name a column of {of}",
            )

    def _parts(self) -> dict[str, _Part]:
        """Return how keys and values are written."""
        value = _renamed(self.columns.empty_table(), self._value).schema
        parts = {"value": _Part(self._options.format, value)}
        if self.key:
            key = self.columns.empty_table().select(self.key).schema
            parts["key"] = _Part(self._key_format, key)
        return parts

    # -- rows ---------------------------------------------------------------------------------

    def fit(self, columns: pa.Schema) -> bool:
        """Return whether rows have these columns. (Which may be null is declared, and not theirs.)"""
        known = self.columns
        return (columns.names, columns.types) == (known.names, known.types)

    def topics(self, rows: pa.Table) -> list[str]:
        """Return the topics to which rows go.

        Raises:
            UserCodeError: for a row that says none.
        """
        if self._options.topic is not None:
            return [self._options.topic]
        column = rows.column(self._options.topic_column)
        self._check_rows(rows, pc.fill_null(pc.equal(column, ""), True), "it names no topic")
        return sorted(column.unique().to_pylist())

    def open(self, topic: str) -> None:
        """Get the formats ready for a topic."""
        if topic in self._formats:
            return
        opened = {}
        for part, of in self._parts().items():
            opened[part] = copy.deepcopy(of.format)
            opened[part].open(topic, part, of.schema)
        self._formats[topic] = opened

    def newest_of_each_key(self, rows: pa.Table) -> pa.Table:
        """Return the last row of each key in each topic.

        Raises:
            UserCodeError: for a key that is null.
        """
        for name in self.key:
            self._check_rows(rows, rows.column(name).is_null(), f"its key {name!r} is null")
        found = []
        for topic in self.topics(rows):
            at = self._rows_to(topic, rows)
            keys = self._keys(topic, rows.take(at))
            found.append(pa.table({"topic": [topic] * len(at), "key": keys, "at": at}))
        every = pa.concat_tables(found)
        last = last_of_each_key(every, ["topic", "key"])
        at = (every if last is None else every.take(last)).column("at")
        return rows if len(at) == rows.num_rows else rows.take(np.sort(at.to_numpy()))

    def portions(self, rows: pa.Table, audit: list[Header] | None) -> Iterator[Portion]:
        """Return the messages of rows, a portion at a time: topic by topic, and in order.

        Args:
            rows: the rows.
            audit: headers that all messages have. Each gets the number of its row, too. None for
                neither.

        Raises:
            UserCodeError: for a row that cannot be a message.
        """
        for topic in self.topics(rows):
            at = self._rows_to(topic, rows)
            for first in range(0, len(at), PORTION_ROWS):
                numbers = at[first : first + PORTION_ROWS]
                some = rows.slice(first, len(numbers))
                if len(at) != rows.num_rows:
                    some = rows.take(numbers)
                yield self._portion(topic, some, numbers, audit)

    def _rows_to(self, topic: str, rows: pa.Table) -> Any:
        if self._options.topic is not None:
            return np.arange(rows.num_rows)
        there = pc.equal(rows.column(self._options.topic_column), topic)
        return np.flatnonzero(there.to_numpy(zero_copy_only=False))

    def _portion(
        self, topic: str, rows: pa.Table, numbers: Any, audit: list[Header] | None
    ) -> Portion:
        count = rows.num_rows
        return Portion(
            topic,
            rows,
            self._keys(topic, rows).to_pylist() if self.key else [None] * count,
            self._values(topic, rows),
            self._partitions(rows),
            self._times(rows),
            self._headers(rows, numbers, audit),
        )

    def _keys(self, topic: str, rows: pa.Table) -> pa.Array:
        try:
            return self._formats[topic]["key"].encode(rows.select(self.key))
        except Unreadable as error:
            raise self._bad_row(
                rows, error.row, f"its key cannot be written: {error.why}"
            ) from None

    def _values(self, topic: str, rows: pa.Table) -> list[bytes | None]:
        deleted = self._deleted(rows)
        kept = rows if deleted is None else rows.filter(pc.invert(deleted))
        try:
            encoded = self._formats[topic]["value"].encode(_renamed(kept, self._value))
        except Unreadable as error:
            raise self._bad_row(
                kept, error.row, f"its value cannot be written: {error.why}"
            ) from None
        if encoded.null_count:
            why = 'its value is null, which deletes its key: say mode="upsert" if that is meant'
            self._check_rows(kept, encoded.is_null(), why)
        found: list[bytes | None] = encoded.to_pylist()
        if deleted is None:
            return found
        values = iter(found)
        return [None if is_gone else next(values) for is_gone in deleted.to_pylist()]

    def _deleted(self, rows: pa.Table) -> Any:
        """Return which rows delete their keys, as booleans; None for none."""
        options = self._options
        if not options.upsert:
            return None
        if options.deletes is not None:
            return pc.fill_null(rows.column(options.deletes).combine_chunks(), False)
        if not self._content or any(not rows.column(name).null_count for name in self._content):
            return None
        gone = rows.column(self._content[0]).is_null()
        for name in self._content[1:]:
            gone = pc.and_(gone, rows.column(name).is_null())
        return one_array(gone)

    def _partitions(self, rows: pa.Table) -> list[int]:
        name = self._options.partition
        if name is None:
            return [ANY_PARTITION] * rows.num_rows
        column = rows.column(name)
        self._check_rows(rows, pc.fill_null(pc.less(column, 0), False), "its partition is negative")
        found: list[int] = pc.fill_null(column.cast(pa.int64()), ANY_PARTITION).to_pylist()
        return found

    def _times(self, rows: pa.Table) -> list[int]:
        if not self._options.event_time:
            return [0] * rows.num_rows
        micros = rows.column(self._time).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        times = pa.chunked_array(micros).to_numpy() // 1000
        why = "Kafka has no times before 1970-01-01T00:00:00.001Z: say timestamp=None"
        self._check_rows(rows, pa.array(times < 1), why)
        found: list[int] = times.tolist()
        return found

    def _headers(
        self, rows: pa.Table, numbers: Any, audit: list[Header] | None
    ) -> list[list[Header] | None]:
        others = None if self._header_of is None else self._header_of(rows)
        if audit is None:
            return [None] * rows.num_rows if others is None else [*others]
        own = [[*audit, ("hr-row", b"%d" % number)] for number in numbers.tolist()]
        return [*own] if others is None else [a + b for a, b in zip(own, others, strict=True)]

    # -- errors -------------------------------------------------------------------------------

    def _check_rows(self, rows: pa.Table, bad: Any, why: str) -> None:
        """Check that no row is marked as bad.

        Raises:
            UserCodeError: for the first one that is.
        """
        at = pc.index(bad, True).as_py()
        if at >= 0:
            raise self._bad_row(rows, at, why)

    def _bad_row(self, rows: pa.Table, at: int, why: str) -> UserCodeError:
        return UserCodeError(
            f"ValueError: the row of {self.described(rows, at)} cannot be a message: {why}",
            remedy="emit what can be one, or let the sink write other columns (value=, key=)",
        )

    def described(self, rows: pa.Table, at: int) -> str:
        """Return a row's key for people; its event time if it has no key."""
        names = self.key or [self._time]
        return ", ".join(f"{name}={rows.column(name)[at].as_py()!r}" for name in names)[:200]


def _own_columns(columns: pa.Schema) -> list[str]:
    """Return the columns of the stream's key, and then that of the event time. They come first."""
    found = []
    for name in columns.names:
        found.append(name)
        if _OUR_TIME.fullmatch(name):
            return found
        if not _OUR_KEY.fullmatch(name):
            break
    raise PipelineError(
        f"these are not the columns of a stream: {', '.join(columns.names)}",
        remedy="the first ones are key (or key0, key1, …) and timestamp",
    )


def _value_columns(options: Options, columns: pa.Schema) -> Columns:
    value = options.value
    if value is None:
        value = {name: name for name in columns.names if name != options.deletes}
    for name in value.values():
        _check_named("value", name, columns)
    return value


def _check_named(option: str, name: str, columns: pa.Schema) -> None:
    if name not in columns.names:
        raise PipelineError(
            f"{option}: the stream has no column {name!r}",
            remedy=f"it has {', '.join(columns.names)}",
        )


def _renamed(rows: pa.Table, chosen: Columns) -> pa.Table:
    fields = [rows.schema.field(column).with_name(name) for name, column in chosen.items()]
    return pa.table([rows.column(c) for c in chosen.values()], schema=pa.schema(fields))


def _is_text(kind: Any) -> bool:
    found: bool = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return found


def _is_text_or_bytes(kind: Any) -> bool:
    found: bool = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return found or _is_text(kind)


# -- headers ----------------------------------------------------------------------------------


def _header_maker(
    headers: Columns | str | None, columns: pa.Schema
) -> Callable[[pa.Table], list[list[Header]]] | None:
    """Return a function that returns the headers of rows; None if they have none.

    Raises:
        PipelineError: for columns that cannot be headers.
    """
    if headers is None:
        return None
    if isinstance(headers, str):
        _check_named("headers", headers, columns)
        _check_all_headers(headers, columns.field(headers).type)
        name, is_map = headers, pa.types.is_map(columns.field(headers).type)
        return lambda rows: [_headers_in(value, is_map) for value in rows.column(name).to_pylist()]
    for header, column in headers.items():
        _check_named("headers", column, columns)
        if header.startswith(OWN_HEADERS):
            raise PipelineError(
                f"headers: names that begin with {OWN_HEADERS!r} are Headrace's own: {header!r}",
                remedy="give it another name: headers={'name': 'column'}",
            )
        if not _is_text_or_bytes(columns.field(column).type):
            raise PipelineError(
                f"headers: column {column!r} is of type {columns.field(column).type}",
                remedy="name columns of texts or bytes",
            )
    names, chosen = list(headers), list(headers.values())

    def of_columns(rows: pa.Table) -> list[list[Header]]:
        by_row = zip(*(rows.column(column).to_pylist() for column in chosen), strict=True)
        return [list(zip(names, values, strict=True)) for values in by_row]

    return of_columns


def _check_all_headers(name: str, kind: Any) -> None:
    """Check that a column can hold all headers of a row."""
    if pa.types.is_map(kind):
        pair = [kind.key_type, kind.item_type]
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        fields = {field.name: field.type for field in kind.value_type}
        pair = list(fields.values()) if list(fields) == ["key", "value"] else []
    else:
        pair = []
    if not pair or not _is_text(pair[0]) or not _is_text_or_bytes(pair[1]):
        raise PipelineError(
            f"headers={name!r}: the column is of type {kind}",
            remedy="name a column of dicts of texts, or of lists of structs with key and value, or "
            "a list of columns",
        )


def _headers_in(value: Any, is_map: bool) -> list[Header]:
    if value is None:
        return []
    return list(value) if is_map else [(one["key"], one["value"]) for one in value]
