"""Steps that are delivered to Iceberg tables of a catalog in SQLite, on a real disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import TableProperties
from pyiceberg.types import LongType, NestedField, StringType

from headrace.errors import Fenced, PipelineError, SinkConflict, StorageError, UserCodeError
from headrace.sinks import Iceberg
from tests.faults.tables.deliveries import (
    SCHEMA,
    begun,
    delivery,
    every_type,
    run,
    values_of,
)

UPSERT: dict[str, Any] = {"mode": "upsert", "keys": ["key"]}


class Shop:
    """A catalog and its table."""

    def __init__(self, folder: Path) -> None:
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/tables",
        }

    def sink(self, **options: Any) -> Iceberg:
        return Iceberg(self.properties, "shop.t", **options)

    @property
    def table(self) -> IcebergTable:
        return load_catalog("default", **self.properties).load_table("shop.t")

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.table.scan().to_arrow().to_pylist()
        return sorted((row["key"], row["n"]) for row in found)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_step_is_a_commit_and_delivering_it_again_changes_nothing(shop: Shop) -> None:
    sink = begun(shop.sink())
    sink.receive(delivery(3, {"a": 1, "b": 2}))
    sink.receive(delivery(7, {"a": 3}))
    before = shop.table.metadata_location
    for number in (3, 7):
        sink.receive(delivery(number, {"a": 1}))
        begun(shop.sink()).receive(delivery(number, {"a": 1}))
    assert shop.table.metadata_location == before
    assert shop.rows() == [("a", 1), ("a", 3), ("b", 2)]
    newest = shop.table.current_snapshot()
    assert newest is not None
    assert newest.summary is not None
    assert '"delivery":7' in (newest.summary["headrace.p.out"] or "")


@settings(max_examples=4, phases=[Phase.generate])
@given(back=st.lists(st.integers(0, 3), min_size=1, max_size=4), upserts=st.booleans())
def test_steps_that_come_again_in_any_way_leave_the_rows_of_each_once(
    tmp_path_factory: pytest.TempPathFactory, back: list[int], upserts: bool
) -> None:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    for newest, steps in enumerate(back):  # each driver begins so many steps before the newest
        sink = begun(shop.sink(**(UPSERT if upserts else {})))
        for number in range(max(0, newest - steps), newest + 1):
            sink.receive(delivery(number, {"a": number}))
    newest = len(back) - 1
    assert [n for _, n in shop.rows()] == ([newest] if upserts else list(range(len(back))))


def test_upsert_keeps_the_last_row_of_a_key(shop: Shop) -> None:
    sink = begun(shop.sink(**UPSERT))
    twice = pa.concat_tables([delivery(0, {"a": n, "b": n}).rows for n in (1, 2)])
    sink.receive(delivery(0, twice))
    assert shop.rows() == [("a", 2), ("b", 2)]
    sink.receive(delivery(1, {"b": 3, "c": 3}))
    assert shop.rows() == [("a", 2), ("b", 3), ("c", 3)]
    sink.receive(delivery(2, {"z": 4}))
    assert shop.rows() == [("a", 2), ("b", 3), ("c", 3), ("z", 4)]


def test_upsert_finds_rows_by_columns_of_every_type_that_keys_have(shop: Shop) -> None:
    names = ["timestamp", "whole", "yes", "bytes", "day", "exact"]
    every = every_type().slice(0, 2)
    every = every.cast(pa.schema([field.with_nullable(False) for field in every.schema]))
    every = every.select([*names, "real"])
    sink = begun(shop.sink(mode="upsert", keys=names), schema=every.schema)
    for number in range(2):
        sink.receive(delivery(number, every))
    assert values_of(shop.table.scan().to_arrow()) == values_of(every)


def test_nothing_is_converted_with_loss(shop: Shop) -> None:
    every = every_type()
    begun(shop.sink(), schema=every.schema).receive(delivery(0, every))
    assert values_of(shop.table.scan().to_arrow()) == values_of(every)


@pytest.mark.parametrize(
    "kind", [pa.duration("us"), pa.uint64(), pa.timestamp("ns"), pa.null()], ids=str
)
def test_types_that_iceberg_does_not_have_are_refused_when_the_pipeline_is_built(
    kind: pa.DataType,
) -> None:
    with pytest.raises(PipelineError, match=r"of type .* which Iceberg cannot hold"):
        Iceberg("mine", "shop.t").check(pa.schema([("x", kind)]))


# -- changes of the columns -------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_a_new_column_is_added_and_a_missing_one_is_null(
    shop: Shop, options: dict[str, Any]
) -> None:
    begun(shop.sink(**options)).receive(delivery(0, {"a": 1}))
    wider = delivery(1, {"b": 2}).rows.append_column("more", pa.array([7]))
    begun(shop.sink(**options), schema=wider.schema).receive(delivery(1, wider))
    begun(shop.sink(**options)).receive(delivery(2, {"c": 3}))
    found = {row["key"]: row["more"] for row in shop.table.scan().to_arrow().to_pylist()}
    assert found == {"a": None, "b": 7, "c": None}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([("key", pa.string()), ("n", pa.string())], "'n' is of type int64 there, and string here"),
        ([("Key", pa.string()), ("n", pa.int64())], "column 'Key' is called 'key' there"),
        (
            [("key", pa.string()), ("timestamp", SCHEMA.field(1).type), ("m", pa.int64())],
            "'m' is new here, and 'n' is missing: that is how a renamed column looks",
        ),
    ],
)
def test_other_changes_are_refused_in_words_when_the_run_begins_and_at_a_delivery(
    shop: Shop, schema: Any, words: str
) -> None:
    begun(shop.sink()).receive(delivery(0, {"a": 1}))
    with pytest.raises(SinkConflict, match=words):
        begun(shop.sink(), schema=pa.schema(schema))
    sink = begun(shop.sink())
    with pytest.raises(SinkConflict, match=words):
        sink.receive(delivery(1, pa.schema(schema).empty_table()))
    assert shop.rows() == [("a", 1)]


def test_a_table_of_others_keeps_its_columns_and_its_rules(shop: Shop) -> None:
    catalog = load_catalog("default", **shop.properties)
    catalog.create_namespace("shop")
    theirs = Schema(
        NestedField(1, "n", LongType(), required=True), NestedField(2, "key", StringType())
    )
    catalog.create_table("shop.t", theirs, properties={"commit.retry.num-retries": "3"})
    sink = begun(shop.sink(columns=["key", "n"]))
    sink.receive(delivery(0, {"a": 1}))
    with pytest.raises(UserCodeError, match="n' of the Iceberg table"):
        sink.receive(delivery(1, pa.table({"key": ["a"], "n": pa.nulls(1, pa.int64())})))
    assert shop.rows() == [("a", 1)]
    assert shop.table.properties[TableProperties.COMMIT_NUM_RETRIES] == "3", "it is theirs"


# -- who delivers -----------------------------------------------------------------------------


def test_another_storage_is_refused_unless_it_takes_over(shop: Shop) -> None:
    begun(shop.sink()).receive(delivery(5, {"a": 1}))
    with pytest.raises(SinkConflict, match=r"of pipeline 'p' has written .* with storage s1"):
        begun(shop.sink(), run("2b"))
    old = begun(shop.sink())
    new = begun(shop.sink(take_over=True), run("2b"))
    new.receive(delivery(0, {"b": 1}))
    with pytest.raises(SinkConflict, match="of another run"):
        old.receive(delivery(6, {"a": 2}))
    new.receive(delivery(1, {"b": 2}))
    assert shop.rows() == [("a", 1), ("b", 1), ("b", 2)]


def test_an_older_driver_is_refused_after_a_newer_one_has_delivered(shop: Shop) -> None:
    old, new = begun(shop.sink()), begun(shop.sink())
    old.receive(delivery(0, {"a": 1}, epoch=1))
    new.receive(delivery(1, {"a": 2}, epoch=2))
    for number in (1, 2):
        with pytest.raises(Fenced, match="epoch 1 is fenced: one of epoch 2"):
            old.receive(delivery(number, {"a": 9}, epoch=1))
    assert shop.rows() == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
@pytest.mark.parametrize("begins", [True, False], ids=["in an empty place", "in a table"])
def test_a_driver_that_wakes_up_inside_a_delivery_cannot_commit(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], begins: bool
) -> None:
    zombie, commit = begun(shop.sink(**options)), Iceberg._commit
    if not begins:
        zombie.receive(delivery(0, {"a": 0}))

    def sleeps(self: Iceberg, *more: Any) -> None:
        if self is zombie:
            monkeypatch.setattr(Iceberg, "_commit", commit)
            begun(shop.sink(**options)).receive(delivery(1, {"b": 1}, epoch=2))
        commit(self, *more)

    monkeypatch.setattr(Iceberg, "_commit", sleeps)
    with pytest.raises(Fenced):
        zombie.receive(delivery(1, {"b": 1}, epoch=1))
    assert [row for row in shop.rows() if row[0] == "b"] == [("b", 1)]


def test_drivers_that_deliver_the_same_step_at_once_add_it_once(shop: Shop) -> None:
    begun(shop.sink()).receive(delivery(0, {"a": 0}))
    sinks = [begun(shop.sink()) for _ in range(3)]
    threads = [
        threading.Thread(target=sink.receive, args=[delivery(1, {"a": 1})]) for sink in sinks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shop.rows() == [("a", 0), ("a", 1)]


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_other_writers_do_not_disturb_a_delivery(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    sink = begun(shop.sink(**options))
    sink.receive(delivery(0, {"a": 1}))
    commit, times = Iceberg._commit, iter(range(3))

    def meanwhile(self: Iceberg, *more: Any) -> None:
        if next(times, None) is not None:
            theirs = delivery(9, {"theirs": 9}).rows
            shop.table.append(theirs.cast(pa.schema([f.with_nullable(True) for f in SCHEMA])))
        commit(self, *more)

    monkeypatch.setattr(Iceberg, "_commit", meanwhile)
    sink.receive(delivery(1, {"b": 2}))
    assert [row for row in shop.rows() if row[0] != "theirs"] == [("a", 1), ("b", 2)]
    assert len(shop.rows()) == 5


def test_the_table_knows_its_deliveries_after_snapshots_expired_or_the_property_was_removed(
    shop: Shop,
) -> None:
    sink = begun(shop.sink())
    for number in range(3):
        sink.receive(delivery(number, {"a": number}))
    with shop.table.transaction() as change:
        change.remove_properties("headrace.p.out")
    sink.receive(delivery(2, {"a": 2}))
    assert len(shop.rows()) == 3
    sink.receive(delivery(3, {"a": 3}))
    table = shop.table
    now = table.current_snapshot()
    assert now is not None
    old = [of.snapshot_id for of in table.snapshots() if of.snapshot_id != now.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    sink.receive(delivery(3, {"a": 3}))
    assert len(shop.rows()) == 4


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_a_commit_whose_reply_is_lost_counts(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    sink, commit = begun(shop.sink(**options)), IcebergTable._do_commit

    def loses(self: IcebergTable, *given: Any, **more: Any) -> None:
        commit(self, *given, **more)
        raise OSError("the connection was reset")

    monkeypatch.setattr(IcebergTable, "_do_commit", loses)
    sink.receive(delivery(0, {"a": 1}))
    assert shop.rows() == [("a", 1)]


def test_an_error_of_the_catalog_has_a_place_and_no_password(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/none/x?password=s3cret"}
    with pytest.raises(StorageError, match="could not be written") as found:
        begun(Iceberg(properties, "shop.t"))
    assert "table shop.t of catalog sqlite" in found.value.place
    assert "s3cret" not in str(found.value)
