"""From the options of a table to a source or a sink.

The names are those of Flink's connectors, where what they mean is the same here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import pyarrow as pa

from headrace import messages, sinks, sources
from headrace.errors import PipelineError
from headrace.sinks import Sink
from headrace.sources import Source
from headrace.sqlfile.statements import Options
from headrace.sqlfile.tokens import Script
from headrace.zsets.apply import DELETED
from headrace.zsets.rows import WEIGHT
from headrace.zsets.transactions.building import Outside
from headrace.zsets.transactions.counting import Overdue, Repeats

#: The column of a source that says what happened, where the format has one.
OP = "change_op"
#: The columns of a source that say to which transaction a change belongs, and its number in it.
TRANSACTION, NUMBER = "change_transaction", "change_number"
_PROPERTIES = "properties."
_TRANSACTIONS = "transactions."
_FILE_FORMATS = {"json": "jsonl", "jsonl": "jsonl", "csv": "csv", "parquet": "parquet"}
_MESSAGE_FORMATS = ("json", "debezium-json")
_STARTS = {"earliest-offset": "earliest", "latest-offset": "latest"}


@dataclass(frozen=True)
class Target:
    """What a sink is made for.

    Attributes:
        name: the table.
        columns: its columns.
        key: its primary key; empty if it has none.
    """

    name: str
    columns: pa.Schema
    key: tuple[str, ...]


@dataclass(frozen=True)
class InTransactions:
    """Where the transactions of a table end, and what happens to what is not as it should be.

    Attributes:
        topic: the topic of their ends. Tables of one topic have their transactions in common.
        ends: the source of the ends.
        table: what the ends call the table.
        rules: ``outside``, ``repeats``, ``within`` and ``overdue`` of
            :func:`headrace.zsets.transactions`, as far as they are given.
    """

    topic: str
    ends: Source
    table: str
    rules: Mapping[str, str]


@dataclass(frozen=True)
class Made:
    """A source or sink.

    Attributes:
        upserts: whether a sink gets the new row of each key, and deletions; otherwise it gets
            changes with their weights.
        op: the column of a source that says what happened to a row; None if every record is a new
            row.
        ignore_missing: whether a source may delete rows that are not there.
        required: columns that a deletion leaves empty, and all other records must have.
        transactions: the transactions that are to be kept whole, if there are any.
    """

    source: Source | None = None
    sink: Sink | None = None
    upserts: bool = False
    op: str | None = None
    ignore_missing: bool = False
    required: tuple[str, ...] = ()
    transactions: InTransactions | None = None


class Given:
    """The options of one table, each of which must be used.

    Args:
        script: the file, for errors.
        table: the name of the table.
        options: the options.
    """

    def __init__(self, script: Script, table: str, options: Options) -> None:
        self._script, self._table, self._options = script, table, options
        self._known: set[str] = set()

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return an option, or the default if it is not given."""
        self._known.add(name)
        found = self._options.values.get(name)
        return default if found is None else found.text

    def need(self, name: str, example: str) -> str:
        """Return an option that must be given.

        Raises:
            PipelineError: if it is not.
        """
        found = self.get(name)
        if found is None:
            raise self.error(
                f"table {self._table!r} needs the option '{name}'", f"'{name}' = '{example}'"
            )
        return found

    def one_of(self, name: str, choices: Collection[str], default: str | None = None) -> str:
        """Return an option that is one of some words.

        Raises:
            PipelineError: if it is another one, or missing and without default.
        """
        found = self.get(name, default)
        if found is None:
            found = self.need(name, next(iter(choices)))
        if found not in choices:
            raise self.error(
                f"'{name}' = '{found}' is unknown here", f"use {', '.join(choices)}", at=name
            )
        return found

    def flag(self, name: str) -> bool:
        """Return whether an option is true; by default it is not."""
        return self.one_of(name, ("true", "false"), "false") == "true"

    def below(self, prefix: str) -> dict[str, str]:
        """Return the options whose names begin with a prefix, without it."""
        found = [name for name in self._options.values if name.startswith(prefix)]
        self._known.update(found)
        return {name.removeprefix(prefix): self._options.values[name].text for name in found}

    def check_used(self) -> None:
        """Check that every option means something to the connector.

        Raises:
            PipelineError: for the first that does not.
        """
        for name, value in self._options.values.items():
            if name not in self._known:
                close = difflib.get_close_matches(name, self._known, n=1)
                meant = f"did you mean '{close[0]}'? " if close else ""
                raise self._script.error(
                    f"the connector of table {self._table!r} has no option '{name}'",
                    value.at,
                    f"{meant}it has {', '.join(sorted(self._known))}",
                )

    def error(self, what: str, remedy: str, *, at: str = "") -> PipelineError:
        """Return an error with the place of the options, or of one of them."""
        place = self._options.values[at].at if at in self._options.values else self._options.at
        return self._script.error(what, place, remedy)


# -- sources ----------------------------------------------------------------------------------


def source_of(
    given: Given, columns: pa.Schema, time: str | None, key: tuple[str, ...] = ()
) -> Made:
    """Return the source of a table.

    Args:
        given: the options of the table.
        columns: its columns.
        time: the column of the event time, if the table names one.
        key: its primary key; empty if it has none.

    Raises:
        PipelineError: for options that are missing, unknown or wrong, with their place.
    """
    connector = given.one_of("connector", [*_SOURCES, _UPSERT_KAFKA])
    if connector == _UPSERT_KAFKA:
        made = _upsert_kafka_source(given, columns, time, key)
    else:
        made = _SOURCES[connector](given, columns, time)
    given.check_used()
    return made


def _files(given: Given, columns: pa.Schema, time: str | None) -> Made:
    path = given.need("path", "orders/*.jsonl")
    format_ = given.one_of("format", _FILE_FORMATS)
    op = given.get("change.op-column")
    if time is None:
        raise given.error(
            "rows of files have no time of their own",
            "name the column of the event time in the table: WATERMARK FOR at AS at",
        )
    options: dict[str, Any] = {}
    if format_ == "csv":
        delimiter = given.get("csv.field-delimiter")
        options = {} if delimiter is None else {"delimiter": delimiter}
    watch = given.flag("source.monitor")
    schema = columns if op is None else _with(columns, op, given)
    source = sources.Files(
        path,
        event_time=time,
        schema=schema,
        format=_FILE_FORMATS[format_],  # type: ignore[arg-type]
        watch=watch,
        **options,
    )
    return Made(source=source, op=op)


def _with(columns: pa.Schema, op: str, given: Given, kind: pa.DataType | None = None) -> pa.Schema:
    if op in columns.names:
        raise given.error(
            f"{op!r} says what happened to a row, and is a column of the table, too",
            "leave it out of the table's columns",
            at="change.op-column",
        )
    return columns.append(pa.field(op, kind or pa.string(), nullable=False))


def _kafka_source(given: Given, columns: pa.Schema, time: str | None) -> Made:
    topic, servers, settings = _broker(given)
    format_ = given.one_of("format", _MESSAGE_FORMATS)
    start = given.one_of("scan.startup.mode", _STARTS, "earliest-offset")
    group = settings.pop("group.id", None)
    changes = format_ == "debezium-json"
    whole = _transactions(given, servers, settings) if changes else None
    value: Any = "json"
    if changes:
        value = messages.Debezium(
            messages.Json(),
            op=OP,
            transaction=None if whole is None else TRANSACTION,
            transaction_order=None if whole is None else NUMBER,
        )
        columns = _with(columns, OP, given)
    if whole is not None:
        columns = columns.append(pa.field(TRANSACTION, pa.string()))
        columns = columns.append(pa.field(NUMBER, pa.int64()))
    options: dict[str, Any] = {} if time is None else {"event_time": time}
    source = sources.Kafka(
        topic.split(";"),
        servers=servers,
        schema=columns,
        format=value,
        start=_STARTS[start],  # type: ignore[arg-type]
        group_id=group,
        settings=settings,
        tombstones="drop" if changes else "keep",
        **options,
    )
    return Made(source=source, op=OP if changes else None, transactions=whole)


def _transactions(given: Given, servers: str, settings: Mapping[str, str]) -> InTransactions | None:
    """Return where the transactions of a table end; None if it does not say so."""
    choices = {
        "outside": get_args(Outside),
        "repeats": get_args(Repeats),
        "overdue": get_args(Overdue),
    }
    topic = given.get(f"{_TRANSACTIONS}topic")
    rules = {}
    for rule in (*choices, "within", "table"):
        name = f"{_TRANSACTIONS}{rule}"
        found = given.get(name)
        if found is not None and topic is None:
            raise given.error(
                f"'{name}' says something of transactions, and nothing says where they end",
                f"'{_TRANSACTIONS}topic' = 'shop.transaction'",
                at=name,
            )
        if found is not None:
            rules[rule] = given.one_of(name, choices[rule]) if rule in choices else found
    if topic is None:
        return None
    own = {name: value for name, value in settings.items() if name != "group.id"}
    boundaries = messages.DebeziumTransactions(messages.Json())
    ends = sources.Kafka(topic, servers=servers, format=boundaries, settings=own)
    table = given.need(f"{_TRANSACTIONS}table", "public.orders")
    rules.pop("table")
    return InTransactions(topic, ends, table, rules)


def _upsert_kafka_source(
    given: Given, columns: pa.Schema, time: str | None, key: tuple[str, ...]
) -> Made:
    """Return a topic as a table: a message is the new row of its key, a tombstone deletes it.

    A tombstone has a key and nothing else, so the source has all other columns as nullable.
    """
    topic, servers, settings = _broker(given)
    for name in ("key.format", "value.format"):
        given.one_of(name, ("json",), "json")
    given.one_of("value.fields-include", ("ALL", "EXCEPT_KEY"), "ALL")
    if not key:
        raise given.error(
            "a topic of new rows and tombstones is read by key, and its table has no primary key",
            "name the columns in the key of the messages: PRIMARY KEY (id) NOT ENFORCED",
        )
    if time is not None and time not in key:
        raise given.error(
            f"column {time!r} is the event time of the table, and a tombstone has no {time!r}",
            "leave WATERMARK FOR out: the time of a row is then that of its message",
        )
    group = settings.pop("group.id", None)
    options: dict[str, Any] = {} if time is None else {"event_time": time}
    loose = pa.schema([field.with_nullable(field.name not in key) for field in columns])
    source = sources.Kafka(
        topic.split(";"),
        servers=servers,
        schema=_with(loose, OP, given, pa.bool_()),
        format="json",
        key_format="json",
        columns={OP: "kafka.tombstone", **{name: f"kafka.key.{name}" for name in key}},
        group_id=group,
        settings=settings,
        **options,
    )
    required = tuple(f.name for f in columns if not f.nullable and f.name not in key)
    return Made(source=source, op=OP, ignore_missing=True, required=required)


def _broker(given: Given) -> tuple[str, str, dict[str, str]]:
    topic = given.need("topic", "orders")
    servers = given.need(f"{_PROPERTIES}bootstrap.servers", "broker:9092")
    settings = given.below(_PROPERTIES)
    settings.pop("bootstrap.servers")
    return topic, servers, settings


def _database_source(given: Given, columns: pa.Schema, time: str | None) -> Made:
    url = given.need("url", "postgresql://ann@host/shop").removeprefix("jdbc:")
    name = given.need("table-name", "orders")
    growing = given.get("source.growing-columns")
    delay = given.get("source.delay")
    if delay is not None and growing is None:
        raise given.error(
            "'source.delay' is for tables that are read as they grow, and this one is read once",
            "name the columns by which it grows: 'source.growing-columns' = 'updated_at;id'",
            at="source.delay",
        )
    source = sources.Table(
        url,
        name,
        schema=given.get("schema-name"),
        type=columns,
        growing=[] if growing is None else growing.split(";"),
        delay=delay,
        event_time=time,
    )
    return Made(source=source)


_SOURCES: Mapping[str, Callable[[Given, pa.Schema, str | None], Made]] = {
    "filesystem": _files,
    "kafka": _kafka_source,
    "jdbc": _database_source,
}
_UPSERT_KAFKA = "upsert-kafka"

# -- sinks ------------------------------------------------------------------------------------


def sink_of(given: Given, target: Target) -> Made:
    """Return the sink of a table.

    Raises:
        PipelineError: for options that are missing, unknown or wrong, with their place.
    """
    connector = given.one_of("connector", _SINKS)
    made = _SINKS[connector](given, target)
    given.check_used()
    return made


def _print(given: Given, target: Target) -> Made:
    return Made(sink=sinks.Console())


def _files_sink(given: Given, target: Target) -> Made:
    path = given.need("path", "out/totals")
    format_: Any = _FILE_FORMATS[given.one_of("format", _FILE_FORMATS)]
    compression: Any = given.get("compression")
    names = [*target.columns.names, WEIGHT]
    return Made(sink=sinks.Files(path, format=format_, compression=compression, columns=names))


def _kafka_sink(given: Given, target: Target) -> Made:
    topic, servers, settings = _broker(given)
    given.one_of("format", ("json",), "json")
    names = [*target.columns.names, WEIGHT]
    key = list(target.key) or None
    return Made(
        sink=sinks.Kafka(
            topic, servers, key=key, value=names, settings=settings, create=_created(given)
        )
    )


def _upsert_kafka(given: Given, target: Target) -> Made:
    topic, servers, settings = _broker(given)
    for name in ("format", "key.format", "value.format"):
        given.one_of(name, ("json",), "json")
    _check_key(given, target)
    sink = sinks.Kafka(
        topic,
        servers,
        mode="upsert",
        key=list(target.key),
        key_format="json",
        value=target.columns.names,
        deletes=DELETED,
        settings=settings,
        create=_created(given),
    )
    return Made(sink=sink, upserts=True)


def _created(given: Given) -> dict[str, Any] | None:
    partitions = given.get("create.partitions")
    return None if partitions is None else {"partitions": int(partitions)}


def _database(given: Given, target: Target) -> Made:
    url = given.need("url", "postgresql://ann@host/shop").removeprefix("jdbc:")
    name = given.get("table-name") or target.name
    schema = given.get("schema-name")
    sink = sinks.Table(url, name, schema=schema, **_by_key(given, target))
    return Made(sink=sink, upserts=True)


def _delta(given: Given, target: Target) -> Made:
    path = given.need("table-path", "s3://lake/totals")
    return Made(sink=sinks.Delta(path, **_by_key(given, target)), upserts=True)


def _iceberg(given: Given, target: Target) -> Made:
    catalog = given.below("catalog.")
    if not catalog:
        given.need("catalog.uri", "https://catalog")
    name = given.need("catalog-table", "shop.totals")
    return Made(sink=sinks.Iceberg(catalog, name, **_by_key(given, target)), upserts=True)


def _by_key(given: Given, target: Target) -> Any:
    _check_key(given, target)
    return {
        "mode": "upsert",
        "keys": list(target.key),
        "columns": target.columns.names,
        "deletes": DELETED,
    }


def _check_key(given: Given, target: Target) -> None:
    """Check that a table has a key by which rows are replaced and deleted.

    Raises:
        PipelineError: if it has none.
    """
    if not target.key:
        raise given.error(
            f"table {target.name!r} has no primary key, so no row of it can be replaced or deleted",
            "name the columns that are different for each row: PRIMARY KEY (id) NOT ENFORCED",
        )


_SINKS: Mapping[str, Callable[[Given, Target], Made]] = {
    "filesystem": _files_sink,
    "kafka": _kafka_sink,
    _UPSERT_KAFKA: _upsert_kafka,
    "jdbc": _database,
    "delta": _delta,
    "iceberg": _iceberg,
    "print": _print,
}
