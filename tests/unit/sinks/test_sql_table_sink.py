"""Steps that are delivered to tables in SQLite, and in a PostgreSQL that is started for it."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from headrace.errors import Fenced, PipelineError, SinkConflict, StorageError, UserCodeError
from headrace.sinks import Table
from headrace.sinks.sql_table import STEPS
from tests.faults.tables import postgres, sql_databases
from tests.faults.tables.deliveries import SCHEMA, begun, delivery, every_type, run
from tests.faults.tables.sql_databases import Rows

NAMES = (f"table{number}" for number in itertools.count())


class Database(sql_databases.Database):
    """A database to which sinks deliver."""

    def rows(self, name: str = "t") -> Rows:
        return self.execute(f'SELECT "key", n FROM {name} ORDER BY "key", n')

    def sink(self, name: str = "t", **options: Any) -> Table:
        return Table(self.url, name, **options)


def new_database(kind: str, folder: Path) -> Database:
    return Database(sql_databases.new_database(kind, folder).url)


@pytest.fixture(params=sql_databases.KINDS)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    found = new_database(request.param, tmp_path)
    yield found
    found.engine.dispose()


def test_a_step_is_a_transaction_and_delivering_it_again_changes_nothing(db: Database) -> None:
    sink = begun(db.sink())
    sink.receive(delivery(3, {"a": 1, "b": 2}))
    sink.receive(delivery(7, {"a": 3}, epoch=2))
    for number in (3, 7):
        sink.receive(delivery(number, {"a": 1}, epoch=2))
        begun(db.sink()).receive(delivery(number, {"a": 1}, epoch=2))
    assert db.rows() == [("a", 1), ("a", 3), ("b", 2)]
    sink_id = b"p/out/t" if db.kind == "mysql" else "p/out/t"
    assert db.execute(f"SELECT sink_id, lineage, storage, delivery, epoch FROM {STEPS}") == [
        (sink_id, "1a", "s1", 7, 2)
    ]


@pytest.fixture(scope="module")
def one_database() -> Database:
    return Database(postgres.new_database())


@settings(max_examples=10)
@given(back=st.lists(st.integers(0, 3), min_size=1, max_size=5), upserts=st.booleans())
def test_steps_that_come_again_in_any_way_leave_the_rows_of_each_once(
    one_database: Database, back: list[int], upserts: bool
) -> None:
    db, name = one_database, next(NAMES)
    for newest, steps in enumerate(back):  # each driver begins so many steps before the newest
        sink = db.sink(name, mode="upsert", keys=["key"]) if upserts else db.sink(name)
        begun(sink)
        for number in range(max(0, newest - steps), newest + 1):
            sink.receive(delivery(number, {"a": number}))
        sink.close()
    newest = len(back) - 1
    assert [n for _, n in db.rows(name)] == ([newest] if upserts else list(range(len(back))))


def test_upsert_keeps_the_last_row_of_a_key(db: Database) -> None:
    sink = begun(db.sink(mode="upsert", keys=["key"]))
    twice = pa.concat_tables([delivery(0, {"a": n, "b": n}).rows for n in (1, 2)])
    sink.receive(delivery(0, twice))
    assert db.rows() == [("a", 2), ("b", 2)]
    sink.receive(delivery(1, {"b": 3, "c": 3}))
    assert db.rows() == [("a", 2), ("b", 3), ("c", 3)]


def test_names_of_tables_and_columns_may_be_any_text(db: Database) -> None:
    schema = pa.schema([pa.field("Select %s", pa.int64(), nullable=False), ("it's", pa.string())])
    name = 'odd "%name'
    sink = db.sink(name, mode="upsert", keys=["Select %s"])
    begun(sink, schema=schema)
    sink.receive(delivery(0, pa.table({"Select %s": [1, 2], "it's": ["x", "y"]})))
    wider = pa.table({"Select %s": [2], "it's": ["z"], "n:e%w": [1]})
    sink.receive(delivery(1, wider))
    with db.engine.connect() as connection:
        table = sa.Table(name, sa.MetaData(), autoload_with=connection)
        found = sorted(map(tuple, connection.execute(sa.select(table))))
    assert found == [(1, "x", None), (2, "z", 1)]


def test_rows_of_nothing_but_keys_are_there_once(db: Database) -> None:
    sink = begun(db.sink(mode="upsert", keys=["key"], columns=["key"]))
    for number in range(2):
        sink.receive(delivery(number, {"a": 1}))
    assert db.execute('SELECT "key" FROM t') == [("a",)]


def test_a_table_in_a_schema_has_its_steps_beside_it() -> None:
    db = Database(postgres.new_database())
    db.execute("CREATE SCHEMA shop")
    for mode, keys in (("append", []), ("upsert", ["key"])):
        begun(db.sink(mode, mode=mode, keys=keys, schema="shop")).receive(delivery(0, {"a": 1}))
        assert db.rows(f"shop.{mode}") == [("a", 1)]
    assert len(db.execute(f"SELECT * FROM shop.{STEPS}")) == 2


# -- values -----------------------------------------------------------------------------------


def test_nothing_is_converted_with_loss(db: Database) -> None:
    every = every_type()
    if db.kind == "mysql":  # (it has no infinite numbers)
        at = every.schema.get_field_index("real")
        every = every.set_column(at, "real", pa.array([0.1, 1.7976931348623157e308, None]))
    extra = {
        "took": pa.array(
            [timedelta(days=-1, microseconds=1), timedelta(0), None], pa.duration("us")
        ),
        "at": pa.array([time(23, 59, 59, 999_999), time(0), None]),
    }
    for name, column in extra.items():
        every = every.append_column(name, column)
    begun(db.sink(), schema=every.schema).receive(delivery(0, every))
    with db.engine.connect() as connection:
        table = sa.Table("t", sa.MetaData(), autoload_with=connection)
        found = [dict(row._mapping) for row in connection.execute(sa.select(table))]
    wanted = every.to_pylist()
    for row in wanted:
        row["took"] = None if row["took"] is None else row["took"] // timedelta(microseconds=1)
        row["map"] = None if row["map"] is None else dict(row["map"])
        if not db.is_postgresql:
            row["timestamp"] = row["timestamp"] and row["timestamp"].replace(tzinfo=None)
    for row in found:
        if isinstance(row["exact"], str):
            row["exact"] = Decimal(row["exact"])
        row["real"] = row["real"] if row["real"] is None else float(row["real"])
        row["yes"] = row["yes"] if row["yes"] is None else bool(row["yes"])
        for name in ("list", "struct", "map"):
            if db.kind == "mysql" and row[name] is not None:
                row[name] = msgspec.json.decode(row[name])
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_texts_that_mean_something_to_a_database_come_back_as_they_were(db: Database) -> None:
    odd = [
        "",
        "\\.",
        "a\n\\.\nb",
        "\\N",
        "NULL",
        "\t\r\n",
        "%s :x ?",
        "\\\\x41",
        "é\U0001f600",
        "'\"",
    ]
    begun(db.sink()).receive(delivery(0, {text: at for at, text in enumerate(odd)}))
    assert {(key, n) for key, n in db.rows()} == {(text, at) for at, text in enumerate(odd)}


def test_what_a_database_cannot_hold_is_refused_and_the_step_is_not_recorded(db: Database) -> None:
    schema = pa.schema([("key", pa.string()), ("real", pa.float64())])
    sink = begun(db.sink(), schema=schema)
    if db.is_postgresql:
        with pytest.raises(StorageError, match="refused the delivery"):
            sink.receive(delivery(0, pa.table({"key": ["a\0b"], "real": [1.0]})))
    else:
        with pytest.raises(UserCodeError, match="NaN"):
            sink.receive(delivery(0, pa.table({"key": ["a"], "real": [float("nan")]})))
    assert db.execute(f"SELECT * FROM {STEPS}") == []
    sink.receive(delivery(0, pa.table({"key": ["a"], "real": [0.5]})))
    assert db.execute('SELECT "key", "real" FROM t') == [("a", 0.5)]


@pytest.mark.parametrize(
    "kind", [pa.uint64(), pa.timestamp("ns"), pa.duration("ns"), pa.null()], ids=str
)
def test_types_that_no_column_has_are_refused_when_the_pipeline_is_built(kind: pa.DataType) -> None:
    with pytest.raises(PipelineError, match=r"of type .* which SQL cannot hold"):
        Table("sqlite://", "t").check(pa.schema([("x", kind)]))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_mysql_has_not_are_refused(mysql: Database, value: float) -> None:
    rows = pa.table({"x": [value]})
    with pytest.raises(UserCodeError, match=r"NaN|infinity"):
        begun(mysql.sink(next(NAMES)), schema=rows.schema).receive(delivery(0, rows))


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_spaces_that_a_column_would_cut_off_are_refused(kind: str, tmp_path: Path) -> None:
    db = new_database(kind, tmp_path)
    db.execute("CREATE TABLE t (x varchar(3))")
    sink = begun(db.sink(), schema=pa.schema([("x", pa.string())]))
    sink.receive(delivery(0, pa.table({"x": ["é  ", None]})))
    with pytest.raises(UserCodeError, match="a text of 5 characters, for a column of 3"):
        sink.receive(delivery(1, pa.table({"x": ["é    "]})))
    assert sorted(db.execute("SELECT x FROM t"), key=str) == [("é  ",), (None,)]


def test_keys_that_differ_in_capitals_or_spaces_are_different_rows(db: Database) -> None:
    keys = ["a", "A", "a ", "é", "e"]
    for number in range(2):
        sink = begun(db.sink(mode="upsert", keys=["key"]))
        sink.receive(delivery(number, dict.fromkeys(keys, number)))
    assert {row[0]: row[1] for row in db.rows()} == dict.fromkeys(keys, 1)


def test_sinks_whose_names_differ_in_capitals_are_different_sinks(db: Database) -> None:
    for name in ("out", "Out", "out "):
        begun(db.sink(), run(sink=name)).receive(delivery(0, {name: 1}))
    assert len(db.rows()) == 3


# -- MySQL ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return new_database("mysql", tmp_path_factory.mktemp("mysql"))


@pytest.mark.parametrize("engine", ["MyISAM", "Aria", "MEMORY"])
def test_a_table_without_transactions_is_refused(mysql: Database, engine: str) -> None:
    name = next(NAMES)
    mysql.execute(f'CREATE TABLE {name} ("key" varchar(9), n bigint) ENGINE = {engine}')
    with pytest.raises(SinkConflict, match=f"has the storage engine {engine}"):
        begun(mysql.sink(name, columns=["key", "n"]))


def test_steps_in_a_table_without_transactions_are_refused(tmp_path: Path) -> None:
    db = new_database("mysql", tmp_path)
    begun(db.sink())
    db.execute(f"ALTER TABLE {STEPS} ENGINE = Aria")
    with pytest.raises(SinkConflict, match=f"{STEPS} has the storage engine Aria"):
        begun(db.sink())


@pytest.mark.parametrize(
    ("unique", "words"),
    [
        ("UNIQUE KEY other (n)", r"the unique key 'other' \(n\) is not by key"),
        ('UNIQUE KEY short ("key"(3))', r"the unique key 'short' \(key\) is not by key"),
    ],
)
def test_an_upsert_that_would_replace_another_row_is_refused(
    mysql: Database, unique: str, words: str
) -> None:
    name = next(NAMES)
    mysql.execute(
        f'CREATE TABLE {name} ("key" varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin '
        f"PRIMARY KEY, n bigint, {unique})"
    )
    with pytest.raises(SinkConflict, match=words):
        begun(mysql.sink(name, mode="upsert", keys=["key"], columns=["key", "n"]))
    begun(mysql.sink(name, columns=["key", "n"]))


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_bin"])
def test_keys_that_a_collation_takes_for_equal_are_refused(mysql: Database, collation: str) -> None:
    name = next(NAMES)
    mysql.execute(
        f'CREATE TABLE {name} ("key" varchar(9) CHARACTER SET utf8mb4 COLLATE {collation} '
        "PRIMARY KEY, n bigint)"
    )
    with pytest.raises(SinkConflict, match=f"has the collation {collation}"):
        begun(mysql.sink(name, mode="upsert", keys=["key"], columns=["key", "n"]))


def test_a_number_that_counts_itself_is_no_other_key(mysql: Database) -> None:
    name = next(NAMES)
    mysql.execute(
        f"CREATE TABLE {name} (id bigint AUTO_INCREMENT PRIMARY KEY, "
        '"key" varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin UNIQUE, n bigint)'
    )
    sink = begun(mysql.sink(name, mode="upsert", keys=["key"], columns=["key", "n"]))
    for number in range(2):
        sink.receive(delivery(number, {"a": number, "b": number}))
    assert mysql.rows(name) == [("a", 1), ("b", 1)]


@pytest.mark.parametrize(
    ("theirs", "kind"),
    [
        ("float", pa.float64()),
        ("double(10, 2)", pa.float64()),
        ("datetime", pa.timestamp("us", "UTC")),
        ("datetime(3)", pa.timestamp("us", "UTC")),
        ("timestamp(6) NULL", pa.timestamp("us")),
        ("time", pa.time64("us")),
        ("decimal(10, 2)", pa.decimal128(38, 18)),
        ("char(9)", pa.string()),
        ("enum('a', 'b')", pa.string()),
        ("binary(4)", pa.binary()),
        ("date", pa.timestamp("us", "UTC")),
    ],
)
def test_columns_of_mysql_that_would_change_values_are_refused(
    mysql: Database, theirs: str, kind: pa.DataType
) -> None:
    name = next(NAMES)
    mysql.execute(f"CREATE TABLE {name} (x {theirs})")
    with pytest.raises(SinkConflict, match="column 'x' is of type"):
        begun(mysql.sink(name), schema=pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("theirs", "value"),
    [("tinyint", 300), ("varchar(3)", "abcd"), ("tinytext", "x" * 300), ("varchar(3)", "😀")],
)
def test_a_lax_server_refuses_what_a_column_cannot_hold(
    mysql: Database, theirs: str, value: Any
) -> None:
    mysql.execute("SET GLOBAL sql_mode = ''")
    name, rows = next(NAMES), pa.table({"x": [value]})
    mysql.execute(f"CREATE TABLE {name} (x {theirs})")
    sink = begun(mysql.sink(name), schema=rows.schema)
    with pytest.raises((StorageError, UserCodeError)):
        sink.receive(delivery(0, rows))
    assert mysql.execute(f"SELECT * FROM {name}") == []


def test_zero_stays_zero_in_a_column_that_counts(mysql: Database) -> None:
    name = next(NAMES)
    mysql.execute(f"CREATE TABLE {name} (x bigint AUTO_INCREMENT PRIMARY KEY)")
    rows = pa.table({"x": [0, 7]})
    begun(mysql.sink(name), schema=rows.schema).receive(delivery(0, rows))
    assert mysql.execute(f"SELECT x FROM {name} ORDER BY x") == [(0,), (7,)]


def test_a_decimal_with_more_digits_than_mysql_has_is_refused(mysql: Database) -> None:
    rows = pa.table({"x": pa.array([Decimal("0.1")], pa.decimal128(38, 31))})
    with pytest.raises(PipelineError, match="30 digits behind the point"):
        begun(mysql.sink(next(NAMES)), schema=rows.schema).receive(delivery(0, rows))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_engine_that_commits_each_statement_is_refused(kind: str, tmp_path: Path) -> None:
    db = new_database(kind, tmp_path)

    def engine() -> sa.Engine:
        return sa.create_engine(db.url, isolation_level="AUTOCOMMIT")

    with pytest.raises(PipelineError, match="commits each statement by itself"):
        begun(Table(engine, "t"))


# -- changes of the columns -------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_new_column_is_added_and_a_missing_one_is_null(db: Database, mode: str) -> None:
    def sink() -> Table:
        return db.sink(mode=mode, keys=["key"] if mode == "upsert" else [])

    begun(sink()).receive(delivery(0, {"a": 1}))
    wider = delivery(1, {"b": 2}).rows.append_column("more", pa.array([7]))
    begun(sink(), schema=wider.schema).receive(delivery(1, wider))
    begun(sink()).receive(delivery(2, {"c": 3}))
    assert db.execute('SELECT "key", more FROM t ORDER BY "key"') == [
        ("a", None),
        ("b", 7),
        ("c", None),
    ]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            [("key", pa.string()), ("n", pa.string())],
            "'n' is of type BIGINT there, and string here",
        ),
        ([("Key", pa.string()), ("n", pa.int64())], "column 'Key' is called 'key' there"),
        (
            [("key", pa.string()), ("timestamp", SCHEMA.field(1).type), ("m", pa.int64())],
            "'m' is new here, and 'n' is missing: that is how a renamed column looks",
        ),
    ],
)
def test_other_changes_are_refused_in_words_when_the_run_begins_and_at_a_delivery(
    db: Database, schema: Any, words: str
) -> None:
    begun(db.sink()).receive(delivery(0, {"a": 1}))
    with pytest.raises(SinkConflict, match=words):
        begun(db.sink(), schema=pa.schema(schema))
    sink = begun(db.sink())
    with pytest.raises(SinkConflict, match=words):
        sink.receive(delivery(1, pa.schema(schema).empty_table()))
    assert db.rows() == [("a", 1)]


@pytest.mark.parametrize(
    ("theirs", "kind"),
    [
        ("real", pa.float64()),
        ("numeric(10, 2)", pa.decimal128(38, 18)),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamptz(3)", pa.timestamp("us", "UTC")),
        ("char(9)", pa.string()),
        ("date", pa.timestamp("us", "UTC")),
    ],
)
def test_columns_that_would_round_or_cut_values_are_refused(
    one_database: Database, theirs: str, kind: pa.DataType
) -> None:
    name = next(NAMES)
    one_database.execute(f"CREATE TABLE {name} (x {theirs})")
    with pytest.raises(SinkConflict, match="column 'x' is of type"):
        begun(one_database.sink(name), schema=pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("theirs", "value"),
    [
        ("integer", 7),
        ("numeric", Decimal("1.5")),
        ("varchar(20)", "text"),
        ("uuid", "12345678-1234-5678-1234-567812345678"),
        ("timestamptz", datetime(2024, 1, 1, tzinfo=UTC)),
        ("json", [1, 2]),
        ("jsonb", [1, 2]),
    ],
)
def test_columns_that_hold_all_values_or_refuse_them_are_taken(
    one_database: Database, theirs: str, value: Any
) -> None:
    name, rows = next(NAMES), pa.table({"x": [value]})
    if isinstance(value, datetime):
        rows = rows.cast(pa.schema([("x", pa.timestamp("us", "UTC"))]))
    one_database.execute(f"CREATE TABLE {name} (id serial primary key, x {theirs})")
    begun(one_database.sink(name), schema=rows.schema).receive(delivery(0, rows))
    ((found,),) = one_database.execute(f"SELECT x FROM {name}")
    assert (str(found) if isinstance(found, uuid.UUID) else found) == value


def test_upsert_wants_keys_by_which_a_row_is_found(db: Database) -> None:
    collation = "COLLATE utf8mb4_nopad_bin" if db.kind == "mysql" else ""
    charset = "CHARACTER SET utf8mb4" if db.kind == "mysql" else ""
    db.execute(f'CREATE TABLE t ("key" varchar(9) {charset} {collation}, timestamp text, n bigint)')
    with pytest.raises(SinkConflict, match="several rows of the table may have the same key"):
        begun(db.sink(mode="upsert", keys=["key"], columns=["key", "n"]))
    db.execute('CREATE UNIQUE INDEX by_key ON t ("key")')
    begun(db.sink(mode="upsert", keys=["key"], columns=["key", "n"])).receive(delivery(0, {"a": 1}))
    assert db.rows() == [("a", 1)]


def test_with_create_false_nothing_is_made_and_the_error_says_how(db: Database) -> None:
    with pytest.raises(SinkConflict, match=f"no {STEPS}") as found:
        begun(db.sink(create=False))
    db.execute(found.value.remedy.removeprefix("make it: "))
    sink = begun(db.sink(create=False))
    with pytest.raises(SinkConflict, match="no t, and create=False") as found:
        sink.receive(delivery(0, {"a": 1}))
    db.execute(found.value.remedy.removeprefix("make it: "))
    sink.receive(delivery(0, {"a": 1}))
    wider = delivery(1, {"b": 2}).rows.append_column("more", pa.array([7]))
    with pytest.raises(SinkConflict, match="no more, and create=False") as found:
        sink.receive(delivery(1, wider))
    db.execute(found.value.remedy.removeprefix("make it: "))
    sink.receive(delivery(1, wider))
    assert db.rows() == [("a", 1), ("b", 2)]


# -- who delivers -----------------------------------------------------------------------------


def test_another_storage_is_refused_unless_it_takes_over(db: Database) -> None:
    begun(db.sink()).receive(delivery(5, {"a": 1}))
    with pytest.raises(SinkConflict, match=r"of pipeline 'p' has written .* with storage s1"):
        begun(db.sink(), run("2b"))
    old = begun(db.sink())
    new = begun(db.sink(take_over=True), run("2b"))
    new.receive(delivery(0, {"b": 1}))
    with pytest.raises(SinkConflict, match="of another run"):
        old.receive(delivery(6, {"a": 2}))
    new.receive(delivery(1, {"b": 2}))
    assert db.rows() == [("a", 1), ("b", 1), ("b", 2)]


def test_a_table_that_was_removed_belongs_to_nobody(db: Database) -> None:
    begun(db.sink()).receive(delivery(5, {"a": 1}))
    db.execute("DROP TABLE t")
    begun(db.sink(), run("2b")).receive(delivery(0, {"b": 1}))
    assert db.rows() == [("b", 1)]


def test_an_older_driver_is_refused_after_a_newer_one_has_delivered(db: Database) -> None:
    old, new = begun(db.sink()), begun(db.sink())
    old.receive(delivery(0, {"a": 1}, epoch=1))
    new.receive(delivery(1, {"a": 2}, epoch=2))
    for number in (1, 2):
        with pytest.raises(Fenced, match="epoch 1 is fenced: one of epoch 2"):
            old.receive(delivery(number, {"a": 9}, epoch=1))
    assert db.rows() == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_drivers_that_deliver_at_once_wait_for_each_other(db: Database, mode: str) -> None:
    keys = ["key"] if mode == "upsert" else []
    sinks = [begun(db.sink(mode=mode, keys=keys)) for _ in range(4)]
    for number in range(3):
        threads = [
            threading.Thread(target=sink.receive, args=[delivery(number, {f"{number}": 1})])
            for sink in sinks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert db.rows() == [("0", 1), ("1", 1), ("2", 1)]


def test_a_driver_that_wakes_up_inside_a_delivery_cannot_add_to_what_a_newer_one_did(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, is_next = begun(db.sink()), Table._is_next

    def sleeps(self: Table, *more: Any) -> bool:
        if self is zombie:
            monkeypatch.setattr(Table, "_is_next", is_next)
            begun(db.sink()).receive(delivery(0, {"a": 1}, epoch=2))
        return is_next(self, *more)

    zombie._prepare(SCHEMA)  # type: ignore[attr-defined]
    monkeypatch.setattr(Table, "_is_next", sleeps)
    with pytest.raises(Fenced):
        zombie.receive(delivery(0, {"a": 1}, epoch=1))
    assert db.rows() == [("a", 1)]


# -- errors -----------------------------------------------------------------------------------


def test_a_commit_whose_reply_is_lost_counts(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = begun(db.sink())
    sink.receive(delivery(0, {"a": 1}))
    kind: Any = type(sink._opened.dialect)  # type: ignore[attr-defined]
    commit, lost = kind.do_commit, iter([True])

    def loses(self: Any, connection: Any) -> None:
        commit(self, connection)
        if next(lost, False):
            raise OperationalError("COMMIT", None, Exception("the connection was reset"))

    monkeypatch.setattr(kind, "do_commit", loses)
    sink.receive(delivery(1, {"b": 2}))
    assert db.rows() == [("a", 1), ("b", 2)]


def test_an_error_has_a_place_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sinks.table_sink._ATTEMPTS", 2)
    sink = Table("postgresql://ann:s3cret@127.0.0.1:1/shop?connect_timeout=1", "t")
    with pytest.raises(StorageError, match="refused the delivery") as found:
        begun(sink)
    assert "table t of postgresql" in found.value.place
    assert "s3cret" not in f"{found.value} {found.value.__cause__!r} {sink.__dict__['_location']}"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense:s3cret", "is not the URL of a database"),
        ("postgresql://ann:s3cret@host:port/x", "is not the URL of a database"),
        ("oracle://ann:s3cret@host/x", "cannot write to oracle"),
        ("mysql+mysqldb://ann:s3cret@host/x", "cannot write to mysql by mysqldb"),
        ("postgresql+psycopg2://ann:s3cret@host/x", "cannot write to postgresql by psycopg2"),
    ],
)
def test_other_databases_and_drivers_are_refused_when_the_pipeline_is_built(
    url: str, words: str
) -> None:
    with pytest.raises(PipelineError, match=words) as found:
        Table(url, "t")
    assert "@host" not in url or "s3cret" not in str(found.value)


def test_a_database_may_be_given_as_a_function_that_makes_an_engine(tmp_path: Path) -> None:
    sink = Table(lambda: sa.create_engine(f"sqlite:///{tmp_path}/db"), "t")
    begun(sink).receive(delivery(0, {"a": 1}))
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute('SELECT "key", n FROM t').fetchall() == [("a", 1)]
