"""Files of SQL: what they declare, and what is refused, with line, column and remedy."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import PipelineError
from headrace.sqlfile import SqlFile
from headrace.sqlfile.connectors import Given, Target, sink_of, source_of
from headrace.sqlfile.statements import Declared, declared
from headrace.sqlfile.tokens import Script

TIME = pa.timestamp("us", "UTC")


def read(text: str) -> Declared:
    return declared(Script(text, "f.sql"))


def test_a_table_has_columns_a_key_a_watermark_and_options() -> None:
    (table,) = read(
        """
        -- a comment; with a semicolon
        CREATE TABLE t (
            id BIGINT PRIMARY KEY NOT ENFORCED, `odd name` STRING COMMENT 'it''s odd',
            price DECIMAL(10, 2) NOT NULL, day DATE NULL, at TIMESTAMP(6) NOT NULL,
            WATERMARK FOR at AS at - INTERVAL '5' MINUTES
        ) WITH ('connector' = 'filesystem', path = 'it''s; here', csv.field-delimiter = ';');
        """
    ).tables.values()
    assert table.columns == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("odd name", pa.string()),
            pa.field("price", pa.decimal128(10, 2), nullable=False),
            pa.field("day", pa.date32()),
            pa.field("at", TIME, nullable=False),
        ]
    )
    assert table.key == ("id",)
    assert table.watermark is not None
    assert (table.watermark.column, table.watermark.delay_us) == ("at", 300_000_000)
    assert {name: text.text for name, text in table.options.values.items()} == {
        "connector": "filesystem",
        "path": "it's; here",
        "csv.field-delimiter": ";",
    }


def test_columns_may_be_arrays() -> None:
    (table,) = read(
        "CREATE TABLE t (a ARRAY<INT> NOT NULL, b array<ARRAY<DECIMAL(3, 1)>>) WITH ('connector' = 'x')"
    ).tables.values()
    inner = pa.list_(pa.decimal128(3, 1))
    assert table.columns == pa.schema(
        [pa.field("a", pa.list_(pa.int32()), nullable=False), pa.field("b", pa.list_(inner))]
    )


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (
            "USING json LOCATION 'orders'",
            {"connector": "filesystem", "format": "json", "path": "orders"},
        ),
        (
            "USING CSV OPTIONS (sep ';', path = 'a b', `change.op-column` 'op') COMMENT 'all'",
            {
                "connector": "filesystem",
                "format": "csv",
                "csv.field-delimiter": ";",
                "path": "a b",
                "change.op-column": "op",
            },
        ),
        ("USING delta LOCATION 'lake'", {"connector": "delta", "table-path": "lake"}),
        (
            "USING jdbc OPTIONS (url 'sqlite:///x.db', dbtable 't')",
            {"connector": "jdbc", "url": "sqlite:///x.db", "table-name": "t"},
        ),
    ],
)
def test_a_table_may_be_declared_as_spark_does(text: str, options: dict[str, str]) -> None:
    (table,) = read(f"CREATE TABLE t (a INT) {text}").tables.values()
    assert {name: one.text for name, one in table.options.values.items()} == options


def test_a_query_may_wait_for_its_rows_to_be_final() -> None:
    one, other = read(
        "CREATE VIEW v AS SELECT x FROM t emit on window close; CREATE VIEW w AS SELECT emit FROM t"
    ).views
    assert (one.query.text, one.query.final) == ("SELECT x FROM t", True)
    assert (other.query.text, other.query.final) == ("SELECT emit FROM t", False)


def test_queries_stay_as_they_are_written() -> None:
    found = read(
        "CREATE VIEW v AS SELECT 'a;b' AS x -- why\n FROM t;\n"
        "CREATE MATERIALIZED VIEW w (PRIMARY KEY (x, y)) AS WITH q AS (SELECT 1) SELECT * FROM q;"
        "INSERT INTO t SELECT 1; CREATE SINK s FROM v WITH ('connector' = 'print');"
        "CREATE SINK r (PRIMARY KEY (x)) AS WITH q AS (SELECT 2) SELECT x FROM q "
        "WITH (connector = 'print'); EXPLAIN v; EXPLAIN PLAN FOR SELECT 3"
    )
    assert [view.query.text for view in found.views] == [
        "SELECT 'a;b' AS x -- why\n FROM t",
        "WITH q AS (SELECT 1) SELECT * FROM q",
    ]
    assert [(view.materialized, view.key) for view in found.views] == [
        (False, ()),
        (True, ("x", "y")),
    ]
    assert [insert.query.text for insert in found.inserts] == ["SELECT 1"]
    assert [(sink.query.text, sink.key) for sink in found.sinks] == [
        ("SELECT * FROM `v`", ()),
        ("WITH q AS (SELECT 2) SELECT x FROM q", ("x",)),
    ]
    assert [(one.what.text, one.is_query) for one in found.explained] == [
        ("v", False),
        ("SELECT 3", True),
    ]


T = "CREATE TABLE t (a INT) WITH ('connector' = 'print');"


@pytest.mark.parametrize(
    ("text", "place", "what", "remedy"),
    [
        ("SELECT 1", "1:1", "'SELECT' begins no statement", "behind CREATE VIEW"),
        ("DROP TABLE t", "1:1", "'DROP' begins no statement", "CREATE MATERIALIZED VIEW"),
        ("\n  CREATE TABLE t (\n    a GEOMETRY)", "3:7", "no type GEOMETRY", "use BIGINT"),
        ("CREATE TABLE t (a INT,\n a INT)", "2:2", "named twice", "once"),
        ("CREATE TABLE t (a VARCHAR(3))", "1:19", "has a length", "use STRING"),
        ("CREATE TABLE t (a INT) USING orc", "1:30", "USING orc is not known", "json"),
        (
            "CREATE TABLE t (a INT) USING jdbc LOCATION 'x'",
            "1:44",
            "has no LOCATION",
            "leave it out",
        ),
        (
            "CREATE TABLE t (a INT) USING json PARTITIONED BY (a)",
            "1:35",
            "PARTITIONED",
            "leave it out",
        ),
        ("CREATE TABLE t (a DECIMAL(39, 0))", "1:19", "no DECIMAL(39, 0)", "38"),
        ("CREATE TABLE t (a TIMESTAMP(9))", "1:19", "microseconds", "TIMESTAMP(6)"),
        ("CREATE TABLE t (a INT) STORED AS x", "1:24", "'STORED' is there", "'connector'"),
        ("CREATE TABLE t (a INT)", "1:22", "the end of the statement", "'connector'"),
        ("CREATE TABLE t (a INT DEFAULT 3)", "1:23", "'DEFAULT' is there", "view over the table"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (b)) WITH ('x'='y')", "1:14", "no column 'b'", "a"),
        (f"{T}\nCREATE VIEW T AS SELECT 1", "2:13", "declared already", "another name"),
        ("CREATE TABLE a.b (a INT)", "1:15", "'.' is there", "leave catalog"),
        ("CREATE TABLE `a b` (a INT)", "1:14", "cannot be the name", "underscores"),
        ("CREATE TABLE `tägs` (a INT)", "1:14", "cannot be the name", "a to z"),
        (f"CREATE TABLE {'a' * 41} (a INT)", "1:14", "cannot be the name", "at most 40"),
        ("CREATE TABLE t (a INT) WITH ('x' = 'y', 'x' = 'z')", "1:41", "given twice", "once"),
        ("CREATE TABLE t (a INT) WITH ('x' = y)", "1:36", "'y' is there", "in quotes"),
        ("CREATE OR REPLACE VIEW v AS SELECT 1", "1:1", "OR REPLACE", "leave it out"),
        ("CREATE INDEX i", "1:8", "'INDEX' is there", "CREATE SINK"),
        ("CREATE VIEW v", "1:13", "the end of the statement", "AS"),
        ("INSERT INTO t (a) SELECT 1", "1:15", "'(' is there", "table's order"),
        (
            "CREATE TABLE t (at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1.5' SECOND)",
            "1:65",
            "no INTERVAL '1.5' SECOND",
            "whole number",
        ),
        ("SET x = 'y'", "1:5", "'x' is there", "the name of a setting"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place_and_the_remedy(
    text: str, place: str, what: str, remedy: str
) -> None:
    with pytest.raises(PipelineError) as refused:
        read(text)
    assert refused.value.place == f"f.sql:{place}", refused.value
    assert what in refused.value.what
    assert remedy in refused.value.remedy


def test_a_text_that_does_not_end_and_a_setting_that_is_none_are_refused() -> None:
    with pytest.raises(PipelineError, match="does not end"):
        read("CREATE VIEW v AS SELECT 'x")
    with pytest.raises(PipelineError, match="no setting 'parallelism'"):
        SqlFile("SET 'parallelism' = '3'", "f.sql")
    assert SqlFile("SET 'pipeline.name' = 'shop'", "dir/f.sql").name == "shop"
    assert SqlFile("", "dir/f.sql").name == "f"


# -- connectors -------------------------------------------------------------------------------

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", TIME)])


UPSERT = "'connector'='upsert-kafka','topic'='a','properties.bootstrap.servers'='h:1'"


def given(options: str) -> Given:
    text = f"CREATE TABLE t (a INT) WITH ({options})"
    script = Script(text, "f.sql")
    return Given(script, "t", declared(script).tables["t"].options)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ("'connector'='filesystem','path'='x/*.jsonl','format'='json'", hr.sources.Files),
        (
            "'connector'='filesystem','path'='x/*.csv','format'='csv','csv.field-delimiter'=';'",
            hr.sources.Files,
        ),
        (
            "'connector'='kafka','topic'='a;b','properties.bootstrap.servers'='h:1',"
            "'format'='json','scan.startup.mode'='latest-offset','properties.group.id'='g'",
            hr.sources.Kafka,
        ),
        (
            "'connector'='kafka','topic'='a','properties.bootstrap.servers'='h:1',"
            "'format'='debezium-json'",
            hr.sources.Kafka,
        ),
    ],
)
def test_a_source_is_made_of_the_options(options: str, kind: Any) -> None:
    made = source_of(given(options), COLUMNS, "at")
    assert isinstance(made.source, kind)
    assert made.op == ("change_op" if "debezium" in options else None)


def test_a_topic_that_is_read_by_key_has_nullable_columns_but_for_its_key() -> None:
    columns = COLUMNS.append(pa.field("n", pa.int32(), nullable=False))
    made = source_of(given(UPSERT), columns, None, ("id",))
    assert (made.op, made.ignore_missing, made.required) == ("change_op", True, ("n",))
    assert made.source is not None
    read = made.source.values().schema
    assert {f.name: f.nullable for f in read} == {
        "id": False,
        "at": True,
        "n": True,
        "change_op": False,
    }


@pytest.mark.parametrize(
    ("options", "time", "key", "what", "remedy"),
    [
        ("", None, (), "has no primary key", "PRIMARY KEY (id)"),
        ("", "at", ("id",), "a tombstone has no 'at'", "leave WATERMARK FOR out"),
        (",'value.format'='avro'", None, ("id",), "'value.format' = 'avro'", "use json"),
        (",'scan.startup.mode'='x'", None, ("id",), "no option 'scan.startup.mode'", "it has"),
    ],
)
def test_a_topic_that_cannot_be_read_by_key_is_refused(
    options: str, time: str | None, key: tuple[str, ...], what: str, remedy: str
) -> None:
    with pytest.raises(PipelineError) as refused:
        source_of(given(UPSERT + options), COLUMNS, time, key)
    assert what in refused.value.what
    assert remedy in refused.value.remedy
    assert refused.value.place.startswith("f.sql:1:")


@pytest.mark.parametrize(
    ("options", "kind", "upserts"),
    [
        ("'connector'='print'", hr.sinks.Console, False),
        ("'connector'='filesystem','path'='out','format'='parquet'", hr.sinks.Files, False),
        (
            "'connector'='kafka','topic'='a','properties.bootstrap.servers'='h:1'",
            hr.sinks.Kafka,
            False,
        ),
        (
            "'connector'='upsert-kafka','topic'='a','properties.bootstrap.servers'='h:1',"
            "'create.partitions'='3'",
            hr.sinks.Kafka,
            True,
        ),
        ("'connector'='jdbc','url'='sqlite:///x.db'", hr.sinks.Table, True),
        (
            "'connector'='jdbc','url'='jdbc:postgresql://h/db','table-name'='x'",
            hr.sinks.Table,
            True,
        ),
        ("'connector'='delta','table-path'='out'", hr.sinks.Delta, True),
        (
            "'connector'='iceberg','catalog.type'='rest','catalog.uri'='u','catalog-table'='a.b'",
            hr.sinks.Iceberg,
            True,
        ),
    ],
)
def test_a_sink_is_made_of_the_options(options: str, kind: Any, upserts: bool) -> None:
    made = sink_of(given(options), Target("t", COLUMNS, ("id",)))
    assert isinstance(made.sink, kind)
    assert made.upserts == upserts


@pytest.mark.parametrize(
    ("options", "what", "remedy"),
    [
        ("'connector'='filesytem'", "'connector' = 'filesytem' is unknown", "use filesystem"),
        ("'path'='x'", "needs the option 'connector'", "'connector' = 'filesystem'"),
        ("'connector'='filesystem','format'='json'", "needs the option 'path'", "orders"),
        (
            "'connector'='filesystem','path'='x','format'='json','pth'='y'",
            "has no option 'pth'",
            "did you mean 'path'?",
        ),
        (
            "'connector'='jdbc','url'='sqlite:///x.db','table-name'='x','source.delay'='9s'",
            "tables that are read as they grow",
            "'source.growing-columns' = 'updated_at;id'",
        ),
        ("'connector'='jdbc','url'='sqlite:///x.db'", "needs the option 'table-name'", "orders"),
        (
            "'connector'='filesystem','path'='x','format'='json','change.op-column'='id'",
            "is a column of the table, too",
            "leave it out",
        ),
    ],
)
def test_options_that_mean_nothing_are_refused_with_their_place(
    options: str, what: str, remedy: str
) -> None:
    with pytest.raises(PipelineError) as refused:
        source_of(given(options), COLUMNS, "at")
    assert what in refused.value.what
    assert remedy in refused.value.remedy
    assert refused.value.place.startswith("f.sql:1:")
    text = f"CREATE TABLE t (a INT) WITH ({options})"
    at = int(refused.value.place.rpartition(":")[2])
    assert text[at - 1 :].startswith(("WITH", "'")), text[at - 1 :]


def test_what_a_source_itself_refuses_has_the_place_of_its_table() -> None:
    text = (
        "\nCREATE TABLE t (a INT) WITH ('connector'='jdbc', 'url'='sqlite:///x.db', "
        "'table-name'='t', 'source.growing-columns'='a', 'source.delay'='soon');"
        "CREATE MATERIALIZED VIEW v AS SELECT a FROM t;"
    )
    with pytest.raises(PipelineError) as refused:
        SqlFile(text, "f.sql").pipeline()
    assert refused.value.place == "f.sql:2:14"
    assert "delay" in refused.value.what


def test_a_table_without_a_time_or_a_key_says_what_to_add() -> None:
    options = "'connector'='filesystem','path'='x','format'='json'"
    with pytest.raises(PipelineError) as refused:
        source_of(given(options), COLUMNS, None)
    assert "WATERMARK FOR at AS at" in refused.value.remedy
    with pytest.raises(PipelineError) as refused:
        sink_of(given("'connector'='delta','table-path'='x'"), Target("t", COLUMNS, ()))
    assert "PRIMARY KEY (id) NOT ENFORCED" in refused.value.remedy


# -- transactions -----------------------------------------------------------------------------

CHANGES = (
    "'connector'='kafka','topic'='{table}','properties.bootstrap.servers'='h:1',"
    "'properties.group.id'='g','format'='debezium-json'"
)


def test_a_topic_of_changes_may_say_where_its_transactions_end() -> None:
    more = "'transactions.topic'='tx','transactions.table'='public.a','transactions.within'='10m'"
    made = source_of(given(CHANGES.format(table="a") + "," + more), COLUMNS, None, ("id",))
    assert made.source is not None
    read = made.source.values().schema
    assert [field.name for field in read][-3:] == [
        "change_op",
        "change_transaction",
        "change_number",
    ]
    whole = made.transactions
    assert whole is not None
    assert (whole.topic, whole.table, whole.rules) == ("tx", "public.a", {"within": "10m"})
    assert whole.ends.values().schema.names == ["status", "id", "counts"]


@pytest.mark.parametrize(
    ("options", "what", "remedy"),
    [
        ("'transactions.outside'='pass'", "nothing says where they end", "'transactions.topic' ="),
        ("'transactions.topic'='tx'", "needs the option 'transactions.table'", "'public.orders'"),
        (
            "'transactions.topic'='tx','transactions.table'='t','transactions.repeats'='drop'",
            "'transactions.repeats' = 'drop' is unknown here",
            "use refuse, ignore",
        ),
    ],
)
def test_wrong_options_of_transactions_are_refused(options: str, what: str, remedy: str) -> None:
    with pytest.raises(PipelineError) as refused:
        source_of(given(CHANGES.format(table="a") + "," + options), COLUMNS, None, ("id",))
    assert what in refused.value.what
    assert remedy in refused.value.remedy


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ("'transactions.table'='public.a'", "two tables are called 'public.a'"),
        ("'transactions.table'='public.b','transactions.within'='9m'", "is '9m' here, and '1m'"),
    ],
)
def test_tables_with_transactions_in_common_agree_on_them(second: str, what: str) -> None:
    tables = "".join(
        f"CREATE TABLE {table} (id BIGINT NOT NULL, PRIMARY KEY (id) NOT ENFORCED) WITH ("
        f"{CHANGES.format(table=table)},'transactions.topic'='shop.tx',{more});\n"
        for table, more in (
            ("a", "'transactions.table'='public.a','transactions.within'='1m'"),
            ("b", second),
        )
    )
    query = "CREATE MATERIALIZED VIEW v AS SELECT a.id FROM a JOIN b ON a.id = b.id;"
    with pytest.raises(PipelineError) as refused:
        SqlFile(tables + query, "f.sql").pipeline()
    assert what in refused.value.what
    assert refused.value.place.startswith("f.sql:2:")
