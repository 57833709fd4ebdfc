"""Tables of SQLite, and of servers that are started for it, as sources."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import BadInput, Damaged, PipelineError, SourceChanged, StorageError
from headrace.pipeline.source import Limit, Offer, Position
from headrace.schema.reserved import PARTITION_COLUMN, TIMESTAMP_COLUMN
from headrace.sources import Table
from headrace.sources.table_growth import Growth
from headrace.storage import open_store
from tests.faults.tables import sql_databases
from tests.faults.tables.deliveries import begun, delivery, every_type
from tests.faults.tables.sql_databases import Database

NAMES = (f"t{number}" for number in itertools.count())
MANY = Limit(1000, 1 << 30)


class Item(msgspec.Struct, frozen=True):
    id: int
    text: str


class Reader:
    """Reads a source as a driver does: a step is an offer whose rows are read, and is committed."""

    def __init__(self, source: Table, folder: Path, position: Position = None) -> None:
        self.source, self.store = source, open_store(str(folder))
        self.position = source.start() if position is None else position
        source.open(self.store)

    def offer(self, limit: Limit = MANY) -> Offer | None:
        return self.source.offer(self.position, limit)

    def rows_of(self, offer: Offer) -> list[dict[str, Any]]:
        reading = pickle.loads(cloudpickle.dumps(self.source.for_tasks()))
        splits = self.source.splits(self.position, offer.end)
        return [row for split in splits for row in reading.read(split).to_pylist()]

    def commit(self, offer: Offer) -> None:
        self.position = offer.end
        self.source.taken(offer.end)
        self.source.committed(offer.end)

    def step(self, limit: Limit = MANY) -> list[dict[str, Any]]:
        """Return the rows of a step; none if there is nothing to read."""
        offer = self.offer(limit)
        if offer is None or offer.empty:
            return []
        found = self.rows_of(offer)
        assert len(found) == offer.rows
        self.commit(offer)
        return found

    def all(self, limit: Limit = MANY) -> list[dict[str, Any]]:
        found = []
        while rows := self.step(limit):
            found += rows
        return found

    @property
    def files(self) -> list[str]:
        return list(self.store.list("batches/"))


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


@pytest.fixture(params=sql_databases.KINDS)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    found = sql_databases.new_database(request.param, tmp_path)
    yield found
    found.engine.dispose()


@pytest.fixture(scope="module")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return sql_databases.new_database("mysql", tmp_path_factory.mktemp("db"))


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return sql_databases.new_database("postgresql", tmp_path_factory.mktemp("db"))


def items(db: Database, count: int, name: str = "t") -> None:
    """Make a table with so many rows."""
    db.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, text varchar(20) NOT NULL)")
    add(db, range(1, count + 1), name)


def add(db: Database, numbers: Any, name: str = "t") -> None:
    rows = ", ".join(f"({n}, 'n{n}')" for n in numbers)
    if rows:
        db.execute(f"INSERT INTO {name} VALUES {rows}")


def growing(db: Database, name: str = "t", **options: Any) -> Table:
    """Return a source of a table that grows by its id."""
    if db.kind == "mysql":
        options.setdefault("delay", "0s")
    return Table(db.url, name, **{"growing": "id", "every": "0s", **options})


# -- a snapshot -------------------------------------------------------------------------------


def test_a_snapshot_has_each_row_once_and_then_ends(db: Database, tmp_path: Path) -> None:
    items(db, 25)
    reader = Reader(Table(db.url, "t"), tmp_path)
    steps = [reader.step(Limit(10, 1 << 30)) for _ in range(3)]
    assert [len(step) for step in steps] == [10, 10, 5]
    assert sorted(ids([row for step in steps for row in step])) == list(range(1, 26))
    offer = reader.offer()
    assert offer is not None and offer.final and offer.empty
    assert reader.source.has_more(reader.position) == ""
    assert reader.files == []


def test_a_snapshot_sees_no_change_that_comes_while_it_is_read(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.table_snapshot._PAGE_ROWS", 4)
    items(db, 1500)
    reader = Reader(Table(db.url, "t"), tmp_path)
    found = reader.step(Limit(100, 1 << 30)) or reader.step(Limit(100, 1 << 30))
    db.execute("UPDATE t SET text = 'changed'")
    db.execute("DELETE FROM t WHERE id > 1000")
    again = Reader(Table(db.url, "t"), tmp_path, reader.position)  # after a restart
    found += again.all(Limit(100, 1 << 30))
    assert sorted((row["id"], row["text"]) for row in found) == [
        (n, f"n{n}") for n in range(1, 1501)
    ]


def test_a_snapshot_of_an_empty_table_ends(db: Database, tmp_path: Path) -> None:
    items(db, 0)
    reader = Reader(Table(db.url, "t"), tmp_path)
    offer = reader.offer()
    assert offer is not None and offer.final and offer.rows == 0
    assert reader.rows_of(offer) == []


def test_a_snapshot_that_was_not_whole_begins_anew(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.table_snapshot._PAGE_ROWS", 1)
    monkeypatch.setattr("headrace.sources.table_snapshot._PAGES", 1)
    items(db, 1500)
    killed = Reader(Table(db.url, "t"), tmp_path)
    offer = killed.offer()
    assert offer is not None and offer.pending and offer.empty
    killed.source.close()
    db.execute("UPDATE t SET text = 'changed'")
    reader = Reader(Table(db.url, "t"), tmp_path, killed.position)
    while (offer := reader.offer()) is not None and offer.pending:
        pass
    assert {row["text"] for row in reader.all()} == {"changed"}
    assert reader.files == []


# -- a table that grows -----------------------------------------------------------------------


def test_a_growing_table_gives_each_row_once_in_order(db: Database, tmp_path: Path) -> None:
    items(db, 7)
    reader = Reader(growing(db, type=Item), tmp_path)
    assert ids(reader.step(Limit(5, 1 << 30))) == [1, 2, 3, 4, 5]
    add(db, [8, 12])
    assert ids(reader.all(Limit(3, 1 << 30))) == [6, 7, 8, 12]
    assert reader.step() == [] and reader.files == []
    add(db, [2**62])
    assert reader.all() == [
        {TIMESTAMP_COLUMN: reader.position["at_us"], "id": 2**62, "text": f"n{2**62}"}
    ]


@settings(max_examples=12, deadline=None)
@given(
    rounds=st.lists(
        st.tuples(st.sets(st.integers(1, 9), max_size=5), st.integers(1, 4), st.booleans()),
        max_size=6,
    )
)
def test_a_growing_table_is_read_once_however_it_is_divided_and_restarted(
    rounds: list[tuple[set[int], int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("grows")
    db = sql_databases.new_database("sqlite", folder)
    items(db, 0)
    reader, found, top = Reader(growing(db), folder), [], 0
    for more, rows, restarts in rounds:
        add(db, sorted(top + n for n in more))
        top += 9
        found += ids(reader.step(Limit(rows, 1 << 30)))
        if restarts:
            reader.offer(Limit(rows, 1 << 30))  # logged, and never committed
            reader.source.close()
            reader = Reader(growing(db), folder, reader.position)
    found += ids(reader.all(Limit(3, 1 << 30)))
    assert found == [n for (n,) in db.execute("SELECT id FROM t ORDER BY id")]
    assert reader.files == []


def test_a_step_ends_when_it_has_its_bytes(db: Database, tmp_path: Path) -> None:
    items(db, 2000)
    reader = Reader(growing(db), tmp_path)
    first = reader.step(Limit(100_000, 1))
    assert 0 < len(first) < 1000
    assert ids(first + reader.all(Limit(100_000, 1))) == list(range(1, 2001))


def test_an_offer_that_is_asked_for_again_is_the_same(db: Database, tmp_path: Path) -> None:
    items(db, 5)
    reader = Reader(growing(db), tmp_path)
    first = reader.offer()
    add(db, [6])
    assert reader.offer() == first
    smaller = reader.offer(Limit(2, 1 << 30))
    assert smaller is not None and smaller.rows == 2


# -- after a crash ----------------------------------------------------------------------------


@pytest.mark.parametrize("grows", [True, False])
def test_a_step_that_is_repeated_has_the_rows_that_it_had(
    db: Database, tmp_path: Path, grows: bool
) -> None:
    def source() -> Table:
        return growing(db) if grows else Table(db.url, "t")

    items(db, 5)
    first = Reader(source(), tmp_path)
    offer = first.offer()
    assert offer is not None
    before = first.rows_of(offer)
    first.source.close()
    db.execute("UPDATE t SET text = 'changed' WHERE id = 2")
    db.execute("DELETE FROM t WHERE id = 5")
    second = Reader(source(), tmp_path, first.position)
    assert second.source.recover(first.position, offer.end)
    assert second.rows_of(offer) == before
    second.commit(offer)
    assert second.files == []


@pytest.mark.parametrize("grows", [True, False])
def test_a_step_whose_rows_are_gone_or_altered_stops_the_run(
    db: Database, tmp_path: Path, grows: bool
) -> None:
    items(db, 5)
    reader = Reader(growing(db) if grows else Table(db.url, "t"), tmp_path)
    offer = reader.offer()
    assert offer is not None
    for name in reader.files:
        data = reader.store.read(name)
        reader.store.delete(name)
        if "index" not in name:
            reader.store.create(name, data.replace(b"n3", b"n4"))
    if grows:
        with pytest.raises(Damaged, match="have changed"):
            reader.rows_of(offer)
    fresh = Reader(growing(db) if grows else Table(db.url, "t"), tmp_path, reader.position)
    for name in reader.files:
        reader.store.delete(name)
    with pytest.raises(SourceChanged, match="are gone"):
        fresh.source.recover(reader.position, offer.end)


# -- transactions that commit late ------------------------------------------------------------


def test_rows_wait_for_a_transaction_that_may_write_below_them(
    postgresql: Database, tmp_path: Path
) -> None:
    db, name = postgresql, next(NAMES)
    db.execute(f"CREATE TABLE {name} (id bigserial PRIMARY KEY, text text)")
    reader = Reader(growing(db, name), tmp_path)
    with db.engine.connect() as late:
        late.exec_driver_sql(f"INSERT INTO {name} (text) VALUES ('first')")
        db.execute(f"INSERT INTO {name} (text) VALUES ('second')")
        for _ in range(3):
            offer = reader.offer()
            assert offer is not None and offer.pending and offer.empty
        late.commit()
    assert [row["text"] for row in reader.all()] == ["first", "second"]


def test_a_user_without_rights_sees_the_transactions_of_others(
    postgresql: Database, tmp_path: Path
) -> None:
    db, name = postgresql, next(NAMES)
    (schema,) = db.execute("SELECT current_schema()")[0]
    db.execute(f"CREATE TABLE {name} (id bigserial PRIMARY KEY)")
    role = f"{schema}_{name}"
    db.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}")
    db.execute(f"GRANT SELECT ON {name} TO {role}")
    options = {"options": f"-c search_path={schema} -c role={role}"}

    def engine() -> sa.Engine:
        found = sa.create_engine(db.url, connect_args=options)
        with found.connect() as connection:
            assert connection.exec_driver_sql("SELECT current_user").scalar_one() == role
        return found

    reader = Reader(Table(engine, name, growing="id", every="0s"), tmp_path)
    with db.engine.connect() as late:
        late.exec_driver_sql(f"INSERT INTO {name} DEFAULT VALUES")
        db.execute(f"INSERT INTO {name} DEFAULT VALUES")
        assert reader.step() == []
        late.commit()
    assert ids(reader.all()) == [1, 2]
    db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_rows_wait_for_a_transaction_that_has_its_time_and_has_not_written_yet(
    postgresql: Database, tmp_path: Path
) -> None:
    db, name = postgresql, next(NAMES)
    db.execute(
        f"CREATE TABLE {name} (at timestamptz NOT NULL DEFAULT now(), id bigserial PRIMARY KEY)"
    )
    reader = Reader(growing(db, name, growing=["at", "id"]), tmp_path)
    with db.engine.connect() as late:
        late.exec_driver_sql("SELECT now()")
        db.execute(f"INSERT INTO {name} DEFAULT VALUES")
        db.execute(f"INSERT INTO {name} DEFAULT VALUES")
        assert reader.step() == []
        late.exec_driver_sql(f"INSERT INTO {name} DEFAULT VALUES")
        assert reader.step() == []
        late.commit()
    assert ids(reader.all()) == [3, 1]  # the second has the newest time, and waits for a newer one
    db.execute(f"INSERT INTO {name} DEFAULT VALUES")
    assert ids(reader.all()) == [2]


Schedule = list[tuple[int, str]]
SCHEDULES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["write", "write", "commit", "undo", "read"])),
    min_size=4,
    max_size=14,
)


def read_beside(db: Database, name: str, schedule: Schedule, folder: Path) -> list[int]:
    """Return the ids that are read while transactions begin, write and end in any order."""
    db.execute(f"CREATE TABLE {name} (id bigserial PRIMARY KEY)")
    reader, found = Reader(growing(db, name), folder), []
    writers = [db.engine.connect() for _ in range(3)]
    for number, action in schedule:
        match action:
            case "write":
                writers[number].exec_driver_sql(f"INSERT INTO {name} DEFAULT VALUES")
            case "commit":
                writers[number].commit()
            case "undo":
                writers[number].rollback()
            case _:
                found += ids(reader.step())
    for writer in writers:
        writer.commit()
        writer.close()
    found += ids(reader.all())
    reader.source.close()
    return found


@settings(max_examples=15, deadline=None)
@given(schedule=SCHEDULES)
def test_no_row_is_lost_in_whatever_order_transactions_commit(
    schedule: Schedule, postgresql: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = next(NAMES)
    found = read_beside(postgresql, name, schedule, tmp_path_factory.mktemp("late"))
    assert found == [n for (n,) in postgresql.execute(f"SELECT id FROM {name} ORDER BY id")]


def test_without_waiting_such_a_row_would_be_lost(
    postgresql: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = [(0, "write"), (1, "write"), (1, "commit"), (0, "read"), (0, "commit")]
    assert read_beside(postgresql, next(NAMES), schedule, tmp_path / "a") == [1, 2]
    monkeypatch.setattr(Growth, "running", lambda self: set())
    assert read_beside(postgresql, next(NAMES), schedule, tmp_path / "b") == [2]


def test_a_delay_holds_rows_back_until_it_is_over(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("headrace.sources.table.monotonic", lambda: now[0])
    items(db, 2)
    reader = Reader(growing(db, delay="30s"), tmp_path)
    assert reader.step() == []
    add(db, [4])
    now[0] = 29.0
    assert reader.step() == []
    now[0] = 31.0
    add(db, [0])  # a late one
    assert ids(reader.step()) == [0, 1, 2]
    assert reader.step() == []  # the last one was seen now
    now[0] = 62.0
    assert ids(reader.all()) == [4]


def test_looks_are_no_more_frequent_than_said(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("headrace.sources.table.monotonic", lambda: now[0])
    items(db, 1)
    reader = Reader(growing(db, every="5s"), tmp_path)
    assert len(reader.step()) == 1 and reader.offer() is None
    add(db, [2])
    now[0] = 4.0
    assert reader.offer() is None
    now[0] = 5.0
    assert ids(reader.step()) == [2]


def test_a_run_that_catches_up_reads_what_was_there_when_it_began(
    db: Database, tmp_path: Path
) -> None:
    items(db, 3)
    reader = Reader(growing(db), tmp_path)
    limit = Limit(2, 1 << 30, open_ended=True, until=reader.source.now(reader.position))
    assert ids(reader.step(limit)) == [1, 2]
    add(db, [4, 5])
    assert ids(reader.step(limit)) == [3]
    assert reader.offer(limit) is None
    assert ids(reader.all()) == [4, 5]


def test_a_run_that_catches_up_with_an_empty_table_reads_nothing(
    db: Database, tmp_path: Path
) -> None:
    items(db, 0)
    reader = Reader(growing(db), tmp_path)
    limit = Limit(2, 1 << 30, open_ended=True, until=reader.source.now(reader.position))
    add(db, [1])
    assert reader.offer(limit) is None


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        ("CACHE 20", "takes 20 of its numbers in advance"),
        ("INCREMENT -1 MAXVALUE 100 START 100", "do not always go up"),
        ("MAXVALUE 100 CYCLE", "do not always go up"),
    ],
)
def test_a_sequence_that_does_not_count_in_order_is_refused(
    postgresql: Database, tmp_path: Path, sequence: str, words: str
) -> None:
    name = next(NAMES)
    postgresql.execute(
        f"CREATE TABLE {name} (id bigint GENERATED ALWAYS AS IDENTITY ({sequence}) PRIMARY KEY)"
    )
    with pytest.raises(PipelineError, match=words):
        Reader(growing(postgresql, name), tmp_path)


# -- the order --------------------------------------------------------------------------------

AT = datetime(2024, 5, 1, 12, tzinfo=UTC)


def changes(db: Database, rows: list[tuple[int, int]]) -> None:
    """Make a table of rows with an id, and a time in seconds after noon."""
    db.execute("CREATE TABLE t (id integer PRIMARY KEY, at timestamp(6) NOT NULL)")
    change(db, rows)


def change(db: Database, rows: list[tuple[int, int]]) -> None:
    texts = ", ".join(f"({n}, '{AT + timedelta(seconds=s):%Y-%m-%d %H:%M:%S}')" for n, s in rows)
    db.execute(f"INSERT INTO t VALUES {texts}")


def test_no_row_with_the_same_time_is_lost_where_a_step_ends(db: Database, tmp_path: Path) -> None:
    changes(db, [(n, n % 3) for n in range(1, 13)])
    reader = Reader(growing(db, growing=["at", "id"], delay="0s"), tmp_path)
    wanted = [3, 6, 9, 12, 1, 4, 7, 10, 2, 5, 8, 11]
    assert ids(reader.all(Limit(5, 1 << 30))) == wanted


def test_rows_with_the_newest_time_wait_for_a_newer_one(tmp_path: Path, db: Database) -> None:
    if db.kind == "mysql":
        pytest.skip("it needs delay=, which lets them wait for that long instead")
    changes(db, [(5, 0), (6, 1)])
    reader = Reader(growing(db, growing=["at", "id"]), tmp_path)
    assert ids(reader.all()) == [5]
    change(db, [(1, 1)])  # of the same second, with a lower id
    assert reader.all() == []
    change(db, [(7, 2)])
    assert ids(reader.all(Limit(1, 1 << 30))) == [1, 6]


def test_a_row_of_the_future_waits_and_holds_no_other_back(
    db: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes(db, [(1, 0), (2, 1)])
    db.execute("INSERT INTO t VALUES (3, '2037-12-31 00:00:00')")
    reader = Reader(growing(db, growing=["at", "id"], delay="0s"), tmp_path)
    assert ids(reader.all()) == [1, 2]
    assert "goes up to 2037-12-31 00:00:00, which is in the future" in caplog.text
    change(db, [(4, 5)])
    assert ids(reader.all()) == [4]


def test_a_row_that_changes_comes_again_with_its_new_time(db: Database, tmp_path: Path) -> None:
    changes(db, [(1, 0), (2, 1)])
    reader = Reader(growing(db, growing=["at", "id"], delay="0s"), tmp_path)
    assert ids(reader.all()) == [1, 2]
    db.execute(f"UPDATE t SET at = '{AT + timedelta(seconds=5):%Y-%m-%d %H:%M:%S}' WHERE id = 1")
    assert ids(reader.all()) == [1]


def test_columns_that_are_not_unique_are_refused(db: Database, tmp_path: Path) -> None:
    changes(db, [(1, 0)])
    with pytest.raises(PipelineError, match="several rows may have the same values") as found:
        Reader(growing(db, growing="at", delay="0s"), tmp_path)
    assert "['at', 'id']" in found.value.remedy


def test_a_query_whose_order_has_equal_rows_is_refused(db: Database, tmp_path: Path) -> None:
    changes(db, [(1, 0), (2, 0)])
    source = growing(
        db, "", query="SELECT id, at FROM t", type={"id": int}, growing="at", delay="0s"
    )
    reader = Reader(source, tmp_path)
    with pytest.raises(BadInput, match="two rows have the same at"):
        reader.offer(Limit(1, 1 << 30))


def test_a_row_without_a_place_in_the_order_is_refused_and_not_passed_over(
    db: Database, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE t (id integer, x integer)")
    db.execute("CREATE UNIQUE INDEX by_id ON t (id)")
    db.execute("INSERT INTO t VALUES (1, 1), (NULL, 2)")
    with pytest.raises(BadInput, match="column 'id' is null in a row"):
        Reader(growing(db), tmp_path).offer()
    query = "SELECT * FROM t WHERE id IS NOT NULL"
    reader = Reader(growing(db, "", query=query, type={"id": int, "x": int}), tmp_path)
    assert ids(reader.all()) == [1]


def test_a_table_that_begins_anew_is_refused(db: Database, tmp_path: Path) -> None:
    items(db, 5)
    reader = Reader(growing(db), tmp_path)
    assert len(reader.all()) == 5
    db.execute("DELETE FROM t")
    assert reader.step() == []
    add(db, [1, 2])
    with pytest.raises(SourceChanged, match="was read up to 5, and goes up to 2 now"):
        reader.offer()
    lenient = Reader(growing(db, may_shrink=True), tmp_path, reader.position)
    assert lenient.step() == []
    add(db, [6])
    assert ids(lenient.all()) == [6]


@pytest.mark.parametrize(
    "other", ["2024-05-01T12:00:00", "2024-05-01 12:00:00.5", "2024-05-01 14:00:00+02:00", "7", ""]
)
def test_times_in_sqlite_that_do_not_sort_as_texts_are_refused(tmp_path: Path, other: str) -> None:
    db = sql_databases.new_database("sqlite", tmp_path)
    changes(db, [(1, 0), (2, 60)])
    db.execute(f"INSERT INTO t VALUES (3, '{other}')")
    with pytest.raises(BadInput, match="column 'at' has no order"):
        Reader(growing(db, growing=["at", "id"]), tmp_path).offer()


@pytest.mark.parametrize("kind", ["varchar(20)", "double precision", "date", "numeric(10, 2)"])
def test_columns_that_do_not_grow_are_refused(
    postgresql: Database, tmp_path: Path, kind: str
) -> None:
    name = next(NAMES)
    postgresql.execute(f"CREATE TABLE {name} (id {kind} PRIMARY KEY)")
    with pytest.raises(PipelineError, match="does not grow"):
        Reader(growing(postgresql, name), tmp_path)


def test_a_uuid_may_follow_a_time(postgresql: Database, tmp_path: Path) -> None:
    name = next(NAMES)
    postgresql.execute(f"CREATE TABLE {name} (at timestamptz, id uuid, PRIMARY KEY (at, id))")
    postgresql.execute(
        f"INSERT INTO {name} SELECT now(), gen_random_uuid() FROM generate_series(1, 5)"
    )
    reader = Reader(growing(postgresql, name, growing=["at", "id"], delay="0s"), tmp_path)
    found = [row["id"] for row in reader.all(Limit(2, 1 << 30))]
    assert found == [
        str(row[0]) for row in postgresql.execute(f"SELECT id FROM {name} ORDER BY id")
    ]


# -- types ------------------------------------------------------------------------------------


def test_what_sinks_write_sources_read_without_loss(db: Database, tmp_path: Path) -> None:
    every = every_type()
    if db.kind == "mysql":  # (it has no infinite numbers)
        at = every.schema.get_field_index("real")
        every = every.set_column(at, "real", pa.array([0.1, 1.7976931348623157e308, None]))
    every = every.append_column(
        "took",
        pa.array([timedelta(days=-1, microseconds=1), timedelta(0), None], pa.duration("us")),
    )
    every = every.append_column("clock", pa.array([time(23, 59, 59, 999_999), time(0), None]))
    begun(hr.sinks.Table(db.url, "t"), schema=every.schema).receive(delivery(0, every))
    flat = every.drop_columns(["list", "struct", "map"])
    kinds = {field.name: field.type for field in flat.schema if field.name != "json"}
    declared: dict[str, Any] = {
        name: kind if name == "key" else _optional(kind) for name, kind in kinds.items()
    }
    declared["json"] = str | None
    reader = Reader(Table(db.url, "t", type=declared), tmp_path)
    found = [{**row} for row in reader.all()]
    for row in found:
        del row[TIMESTAMP_COLUMN]
    wanted = flat.to_pylist()
    for row, there in zip(sorted(found, key=_key), sorted(wanted, key=_key), strict=True):
        for of in (row, there):
            of["json"] = of["json"] and msgspec.json.decode(of["json"])
        assert row == there


def _key(row: dict[str, Any]) -> str:
    return str(row["key"])


def _optional(kind: pa.DataType) -> Any:
    from typing import Annotated

    python: Any = {
        pa.timestamp("us", tz="UTC"): datetime,
        pa.int64(): int,
        pa.uint8(): Annotated[int, pa.uint8()],
        pa.float64(): float,
        pa.bool_(): bool,
        pa.binary(): bytes,
        pa.date32(): date,
        pa.decimal128(38, 18): Decimal,
        pa.duration("us"): timedelta,
        pa.time64("us"): time,
    }[kind]
    return python | None


def test_types_come_from_the_table_of_a_postgresql(postgresql: Database, tmp_path: Path) -> None:
    name = next(NAMES)
    postgresql.execute(f"CREATE TYPE {name}_mood AS ENUM ('sad', 'happy')")
    postgresql.execute(
        f"""CREATE TABLE {name} (small smallint NOT NULL, big bigint, real real, double float8,
        exact numeric(20, 5), anynum numeric, yes boolean, text text, fixed char(4), vc varchar(9),
        mood {name}_mood, bytes bytea, day date, local timestamp, at timestamptz(3), clock time,
        id uuid, doc jsonb, words text[], "Odd Name" int)"""
    )
    postgresql.execute(
        f"""INSERT INTO {name} VALUES (1, 2, 0.1, 0.1, 123456789012345.12345, 0.5, true, 'é', 'ab',
        'vc', 'happy', '\\x00ff', '2024-02-29', '2024-05-01 12:00:00', '2024-05-01 12:00:00+02',
        '23:59:59.999999', '12345678-1234-5678-1234-567812345678', '{{"n": 1.10}}',
        '{{a,NULL}}', 7)"""
    )
    source = Table(postgresql.url, name, event_time="at", time_zone="Europe/Paris")
    assert source.values().schema.field("exact").type == pa.decimal128(20, 5)
    assert not source.values().schema.field("small").nullable
    (row,) = Reader(source, tmp_path).all()
    noon = datetime(2024, 5, 1, 10, tzinfo=UTC)
    assert row == {
        TIMESTAMP_COLUMN: int(noon.timestamp()) * 1_000_000,
        "small": 1,
        "big": 2,
        "real": pa.scalar(0.1, pa.float32()).as_py(),
        "double": 0.1,
        "exact": Decimal("123456789012345.12345"),
        "anynum": Decimal("0.5"),
        "yes": True,
        "text": "é",
        "fixed": "ab  ",
        "vc": "vc",
        "mood": "happy",
        "bytes": b"\x00\xff",
        "day": date(2024, 2, 29),
        "local": noon,
        "at": noon,
        "clock": time(23, 59, 59, 999_999),
        "id": "12345678-1234-5678-1234-567812345678",
        "doc": '{"n": 1.10}',
        "words": ["a", None],
        "Odd_Name": 7,
    }


def test_types_come_from_the_table_of_a_mariadb(mysql: Database, tmp_path: Path) -> None:
    name = next(NAMES)
    mysql.execute(
        f"""CREATE TABLE {name} (tiny tinyint NOT NULL, yes boolean, big bigint unsigned,
        small_float float, large_float double, exact decimal(20, 5), text text,
        mood enum('sad', 'happy'), bytes blob, day date, local datetime(6), at timestamp(6) NULL,
        clock time(6), id uuid, doc json, y year)"""
    )
    mysql.execute(
        f"""INSERT INTO {name} VALUES (1, true, 18446744073709551615, 0.1, 0.1,
        123456789012345.12345, 'e', 'happy', X'00ff', '2024-02-29', '2024-05-01 12:00:00',
        FROM_UNIXTIME(1714557600), '23:59:59.999999', '12345678-1234-5678-1234-567812345678',
        '{{"n": 1.10}}', 2024)"""
    )
    mysql.execute("SET GLOBAL time_zone = '+05:00'")
    source = Table(mysql.url, name, event_time="at", time_zone="Europe/Paris")
    (row,) = Reader(source, tmp_path).all()
    noon = datetime(2024, 5, 1, 10, tzinfo=UTC)
    assert row == {
        TIMESTAMP_COLUMN: 1714557600_000_000,
        "tiny": 1,
        "yes": True,
        "big": 2**64 - 1,
        "small_float": pa.scalar(0.1, pa.float32()).as_py(),
        "large_float": 0.1,
        "exact": Decimal("123456789012345.12345"),
        "text": "e",
        "mood": "happy",
        "bytes": b"\x00\xff",
        "day": date(2024, 2, 29),
        "local": noon,
        "at": noon,
        "clock": time(23, 59, 59, 999_999),
        "id": "12345678-1234-5678-1234-567812345678",
        "doc": '{"n": 1.10}',
        "y": 2024,
    }


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("boolean", "2", "a boolean is 0 or 1"),
        ("time", "'-01:00:00'", "not a time of day"),
        ("date", "'0000-00-00'", "'0000-00-00' is of type str"),
        ("bit(3)", "1", "column 'x' is of type BIT"),
        ("set('a')", "'a'", "column 'x' is of type SET"),
        ("decimal(50, 2)", "1", "column 'x' is of type DECIMAL"),
    ],
)
def test_a_value_of_mariadb_that_would_be_changed_is_refused(
    mysql: Database, tmp_path: Path, kind: str, value: str, words: str
) -> None:
    name = next(NAMES)
    mysql.execute(f"CREATE TABLE {name} (x {kind})")
    mysql.execute(f"INSERT INTO {name} VALUES ({value})")
    with pytest.raises((BadInput, PipelineError), match=words):
        Reader(Table(mysql.url, name), tmp_path).all()


def test_mysql_needs_a_delay_that_covers_transactions(
    mysql: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, now = next(NAMES), [0.0]
    monkeypatch.setattr("headrace.sources.table.monotonic", lambda: now[0])
    mysql.execute(f"CREATE TABLE {name} (id bigint AUTO_INCREMENT PRIMARY KEY, text varchar(9))")
    with pytest.raises(PipelineError, match="does not say which transactions are running"):
        Reader(Table(mysql.url, name, growing="id"), tmp_path)
    reader = Reader(growing(mysql, name, delay="30s"), tmp_path)
    with mysql.engine.connect() as late:
        late.exec_driver_sql(f"INSERT INTO {name} (text) VALUES ('first')")
        mysql.execute(f"INSERT INTO {name} (text) VALUES ('second')")
        assert reader.step() == []
        late.commit()
    now[0] = 30.0
    assert [row["text"] for row in reader.all()] == ["first", "second"]


@pytest.mark.parametrize(
    "kind", ["interval", "inet", "numeric(60, 2)", "bit(3)", "int4range", "money"]
)
def test_a_column_that_cannot_be_read_is_refused_by_name_unless_it_is_left_out(
    postgresql: Database, tmp_path: Path, kind: str
) -> None:
    name = next(NAMES)
    postgresql.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, strange {kind})")
    postgresql.execute(f"INSERT INTO {name} (id) VALUES (1)")
    with pytest.raises(PipelineError, match="column 'strange' is of type"):
        Table(postgresql.url, name)
    assert ids(Reader(Table(postgresql.url, name, columns=["id"]), tmp_path).all()) == [1]


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("numeric(40, 20)", "1", "which cannot be read"),
        ("numeric", "'NaN'", "cannot be kept"),
        ("numeric", "0.1234567890123456789", "cannot be kept"),
        ("date", "'infinity'", "the driver cannot read a value"),
        ("text[]", "'{{a},{b}}'", "not str"),
    ],
)
def test_a_value_that_would_be_changed_is_refused(
    postgresql: Database, tmp_path: Path, kind: str, value: str, words: str
) -> None:
    name = next(NAMES)
    postgresql.execute(f"CREATE TABLE {name} (x {kind})")
    postgresql.execute(f"INSERT INTO {name} VALUES ({value})")
    with pytest.raises((BadInput, PipelineError), match=words):
        Reader(Table(postgresql.url, name), tmp_path).all()


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("integer", "'x'", "'x' is of type str"),
        ("boolean", "2", "a boolean is 0 or 1"),
        ("decimal(30, 20)", "0.12345678901234567", "SQLite has rounded it"),
        ("text", "x'00'", "of type bytes"),
        ("datetime", "5", "of type int"),
        ("date", "'May'", "Invalid isoformat"),
    ],
)
def test_a_value_of_sqlite_that_is_not_of_its_columns_type_is_refused(
    tmp_path: Path, kind: str, value: str, words: str
) -> None:
    db = sql_databases.new_database("sqlite", tmp_path)
    db.execute(f"CREATE TABLE t (x {kind})")
    db.execute(f"INSERT INTO t VALUES ({value})")
    with pytest.raises(BadInput, match=words) as found:
        Reader(Table(db.url, "t"), tmp_path).all()
    assert "row 1 of those read" in found.value.place


def test_the_columns_of_a_type_are_read_by_their_names(db: Database, tmp_path: Path) -> None:
    items(db, 2)

    class Named(msgspec.Struct):
        number: int

    source = Table(db.url, "t", type=Named, columns={"number": "id"}, partition="text")
    found = Reader(source, tmp_path).all()
    assert [(row["number"], row[PARTITION_COLUMN]) for row in found] == [(1, "n1"), (2, "n2")]
    plain = Table(db.url, "t", columns={"name": "text"})
    assert plain.values().schema.names == ["name"]
    with pytest.raises(PipelineError, match="there is no column 'nope'"):
        Table(db.url, "t", columns=["nope"])


# -- arguments and errors ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "reads one table or one query"),
        ({"name": "t", "query": "SELECT 1"}, "reads one table or one query"),
        ({"query": "SELECT 1 AS x"}, "types of a query are not known"),
        ({"name": "t", "delay": "1s", "type": Item}, "for tables that grow"),
        ({"name": "missing"}, "there is no table 'missing'"),
        ({"name": "t", "type": Item, "columns": ["id"]}, "list of names"),
        ({"name": "t", "type": Item, "time_unit": "h"}, "time_unit='h'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_when_the_pipeline_is_built(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(PipelineError, match=words):
        Table(f"sqlite:///{tmp_path}/db", **options)


def test_a_colon_in_a_query_is_no_parameter(db: Database, tmp_path: Path) -> None:
    items(db, 2)
    query = "SELECT id, 'a:b%' AS text FROM t WHERE text <> ':x';"
    found = Reader(Table(db.url, query=query, type=Item), tmp_path).all()
    assert [row["text"] for row in found] == ["a:b%", "a:b%"]


def test_no_password_is_kept_or_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("headrace.sinks.table_sink._ATTEMPTS", 2)
    url = "postgresql://ann:s3cret@127.0.0.1:1/shop?connect_timeout=1&password=s3cret"
    source = Table(url, "t", type=Item, growing="id")
    with pytest.raises(StorageError, match="the database cannot be read") as found:
        source.open(open_store(str(tmp_path)))
    assert "table t of postgresql" in found.value.place
    kept = f"{found.value} {found.value.__cause__!r} {source.start()} {source.read_by()}"
    assert "s3cret" not in kept
    assert b"s3cret" not in cloudpickle.dumps(source.for_tasks())


# -- pipelines --------------------------------------------------------------------------------


class Order(msgspec.Struct, frozen=True):
    id: int
    customer: str
    at: datetime


class Counting(hr.Computation):
    number = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record[Order]) -> None:
        self.number.value += 1
        ctx.produce("out", self.number.value)


def orders(db: Database, found: list[Any], grows: bool) -> hr.Pipeline:
    pipeline = hr.Pipeline("orders")
    options: dict[str, Any] = {"growing": "id", "delay": "0s", "every": "0s"} if grows else {}
    source = Table(db.url, "orders", type=Order, event_time="at", **options)
    stream = pipeline.inject("orders", source, watermark=hr.bounded_delay("1h"))
    counts = pipeline.compute("counts", Counting(), keys={stream: "customer"})
    pipeline.sink(
        "counts", counts, hr.sinks.Calls(lambda step, rows: found.extend(rows.to_pylist()))
    )
    return pipeline


def order(db: Database, numbers: Any) -> None:
    for n in numbers:
        db.execute(f"INSERT INTO orders VALUES ({n}, 'c{n % 3}', '2024-05-01 12:00:{n:02}')")


@pytest.mark.parametrize("grows", [True, False])
def test_a_pipeline_reads_a_table(db: Database, tmp_path: Path, grows: bool) -> None:
    db.execute(
        "CREATE TABLE orders (id integer PRIMARY KEY, customer varchar(9) NOT NULL, "
        "at timestamp(6) NOT NULL)"
    )
    found: list[Any] = []
    rounds: list[Callable[[Any], Any]] = [lambda job: job.catch_up()] * 2 if grows else []
    order(db, range(6))
    steps: Iterator[Any] = iter([range(6, 12), []])
    for read in rounds or [lambda job: job.drain()]:
        with hr.run(
            orders(db, found, grows),
            storage=tmp_path / "storage",
            runner="inline",
            settings=hr.Settings(limit=hr.Limit(4, 1 << 20)),
        ) as job:
            read(job)
        order(db, next(steps))
    each = 4 if grows else 2
    assert sorted((row["key"], row["value"]) for row in found) == [
        (f"c{c}", n) for c in range(3) for n in range(1, each + 1)
    ]
