"""Steps that are delivered to Delta tables on a real disk."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import Fenced, PipelineError, SinkConflict, StorageError, UserCodeError
from headrace.sinks import Delta
from headrace.sinks import delta as module
from tests.faults.tables.deliveries import (
    SCHEMA,
    begun,
    delivery,
    every_type,
    run,
    values_of,
)
from tests.support.s3server import S3Server


def rows_in(table: Path) -> list[tuple[Any, ...]]:
    """Return keys and numbers in a table, in order."""
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted((row["key"], row["n"]) for row in found)


def test_a_step_is_a_commit_and_delivering_it_again_changes_nothing(tmp_path: Path) -> None:
    table = tmp_path / "out" / "table"
    sink = begun(Delta(table))
    sink.receive(delivery(3, {"a": 1, "b": 2}))
    sink.receive(delivery(7, {"a": 3}))
    before = DeltaTable(table).version()
    for number in (3, 7):
        sink.receive(delivery(number, {"a": 1}))
        begun(Delta(table)).receive(delivery(number, {"a": 1}))
    assert DeltaTable(table).version() == before
    assert rows_in(table) == [("a", 1), ("a", 3), ("b", 2)]


@settings(max_examples=15)
@given(back=st.lists(st.integers(0, 3), min_size=1, max_size=6), upserts=st.booleans())
def test_steps_that_come_again_in_any_way_leave_the_rows_of_each_once(
    tmp_path_factory: pytest.TempPathFactory, back: list[int], upserts: bool
) -> None:
    table = tmp_path_factory.mktemp("table")
    for newest, steps in enumerate(back):  # each driver begins so many steps before the newest
        sink = Delta(table, mode="upsert", keys=["key"]) if upserts else Delta(table)
        begun(sink)
        for number in range(max(0, newest - steps), newest + 1):
            sink.receive(delivery(number, {"a": number}))
    newest = len(back) - 1
    assert [n for _, n in rows_in(table)] == ([newest] if upserts else list(range(len(back))))


def test_upsert_keeps_the_last_row_of_a_key(tmp_path: Path) -> None:
    sink = begun(Delta(tmp_path, mode="upsert", keys=["key"]))
    twice = pa.concat_tables([delivery(0, {"a": n, "b": n}).rows for n in (1, 2)])
    sink.receive(delivery(0, twice))
    assert rows_in(tmp_path) == [("a", 2), ("b", 2)]
    sink.receive(delivery(1, {"b": 3, "c": 3}))
    assert rows_in(tmp_path) == [("a", 2), ("b", 3), ("c", 3)]


def test_upsert_finds_rows_by_several_columns_of_any_name(tmp_path: Path) -> None:
    rows = pa.table({"Key": ["a", "a"], "select": [1, 2], "n": [1, 1]})
    rows = rows.cast(pa.schema([field.with_nullable(False) for field in rows.schema]))
    sink = begun(Delta(tmp_path, mode="upsert", keys=["Key", "select"]), schema=rows.schema)
    sink.receive(delivery(0, rows))
    sink.receive(delivery(1, rows.slice(1).set_column(2, rows.schema.field("n"), [[5]])))
    found = DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert sorted((row["Key"], row["select"], row["n"]) for row in found) == [
        ("a", 1, 1),
        ("a", 2, 5),
    ]


def test_overwrite_replaces_the_whole_table_or_the_partitions_that_a_step_touches(
    tmp_path: Path,
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    sink = begun(Delta(whole, mode="overwrite"))
    divided = begun(Delta(parts, mode="overwrite", partition_by=["key"]))
    odd = "it's a=b/c"
    for one in (sink, divided):
        one.receive(delivery(0, {"a": 1, odd: 1}))
        one.receive(delivery(1, {odd: 2}))
        one.receive(delivery(1, {odd: 2}))
    assert rows_in(whole) == [(odd, 2)]
    assert rows_in(parts) == [("a", 1), (odd, 2)]
    assert DeltaTable(parts).metadata().partition_columns == ["key"]


def test_partitions_of_null_numbers_and_dates_are_replaced_too(tmp_path: Path) -> None:
    every = every_type()
    sink = begun(
        Delta(tmp_path, mode="overwrite", partition_by=["day", "whole", "yes"]), schema=every.schema
    )
    for number in range(2):
        sink.receive(delivery(number, every))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 3


def test_an_empty_text_is_refused_as_a_partition_since_delta_reads_it_as_null(
    tmp_path: Path,
) -> None:
    sink = begun(Delta(tmp_path, partition_by=["key"]))
    with pytest.raises(SinkConflict, match="Delta reads that as null"):
        sink.receive(delivery(0, {"": 1}))


def test_nothing_is_converted_with_loss(tmp_path: Path) -> None:
    every = every_type()
    begun(Delta(tmp_path), schema=every.schema).receive(delivery(0, every))
    found = values_of(DeltaTable(tmp_path).to_pyarrow_table())
    assert found == values_of(every)
    kinds = pa.schema(DeltaTable(tmp_path).schema().to_arrow())
    assert kinds.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert kinds.field("exact").type == pa.decimal128(38, 18)


@pytest.mark.parametrize(
    "kind",
    [pa.duration("us"), pa.time64("us"), pa.uint64(), pa.timestamp("ns"), pa.null()],
    ids=str,
)
def test_what_delta_cannot_hold_is_refused_when_the_pipeline_is_built(kind: pa.DataType) -> None:
    for of in (kind, pa.list_(kind), pa.struct([("x", kind)])):
        with pytest.raises(
            PipelineError, match=r"column 'x' is of type .* which Delta cannot hold"
        ):
            Delta("t").check(pa.schema([SCHEMA.field(0), pa.field("x", of)]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "merge"}, "mode='merge'"),
        ({"mode": "upsert"}, r"mode='upsert' with keys=\[\]"),
        ({"keys": ["key"]}, r"mode='append' with keys=\['key'\]"),
        ({"mode": "upsert", "keys": "key"}, "one text"),
        ({"mode": "upsert", "keys": ["nokey"]}, "no column 'nokey'"),
        ({"mode": "upsert", "keys": ["n"]}, "column 'n' may be null"),
        ({"mode": "upsert", "keys": ["real"]}, "which is of type double"),
        ({"columns": ["key", "m"]}, "the stream has no column 'm'"),
        ({"columns": "key"}, "one text"),
        ({"columns": []}, "names no column"),
        ({"columns": {"key": "a", "n": "a"}}, "one twice"),
        ({"columns": {"key": "a", "n": "A"}}, "differ in capitals alone"),
        ({"columns": {"key": "a b"}}, "cannot be the name of a column"),
        ({"partition_by": "key"}, "one text"),
        ({"partition_by": ["day"]}, "no column 'day'"),
        ({"partition_by": ["timestamp"]}, "is of type timestamp"),
        ({"columns": ["key"], "partition_by": ["key"]}, "leaves no column"),
    ],
)
def test_options_that_do_not_fit_are_refused_when_the_pipeline_is_built(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(PipelineError, match=words):
        Delta("t", **options).check(SCHEMA.append(pa.field("real", pa.float64(), nullable=False)))


def test_columns_are_chosen_and_named(tmp_path: Path) -> None:
    begun(Delta(tmp_path, columns={"n": "count", "key": "page"})).receive(delivery(0, {"a": 1}))
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == [{"count": 1, "page": "a"}]


# -- changes of the columns -------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_new_column_is_added_and_a_missing_one_is_null(tmp_path: Path, mode: Any) -> None:
    def sink() -> Delta:
        return Delta(tmp_path, mode=mode, keys=["key"] if mode == "upsert" else [])

    begun(sink()).receive(delivery(0, {"a": 1}))
    wider = delivery(1, {"b": 2}).rows.append_column(
        pa.field("more", pa.int64(), nullable=False), pa.array([7])
    )
    begun(sink(), schema=wider.schema).receive(delivery(1, wider))
    begun(sink()).receive(delivery(2, {"c": 3}))
    found = {row["key"]: row["more"] for row in DeltaTable(tmp_path).to_pyarrow_table().to_pylist()}
    assert found == ({"c": None} if mode == "overwrite" else {"a": None, "b": 7, "c": None})


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
    tmp_path: Path, schema: Any, words: str
) -> None:
    begun(Delta(tmp_path)).receive(delivery(0, {"a": 1}))
    with pytest.raises(SinkConflict, match=words):
        begun(Delta(tmp_path), schema=pa.schema(schema))
    sink = begun(Delta(tmp_path))
    with pytest.raises(SinkConflict, match=words):
        sink.receive(delivery(1, pa.schema(schema).empty_table()))
    assert DeltaTable(tmp_path).version() == 1


def test_a_table_of_others_is_written_in_its_own_types_and_its_rules_hold(tmp_path: Path) -> None:
    theirs = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("key", pa.string())])
    write_deltalake(tmp_path, theirs.empty_table())
    sink = begun(Delta(tmp_path, columns=["key", "n"]))
    sink.receive(delivery(0, {"a": 1}))
    with pytest.raises(UserCodeError, match="n' of the Delta table"):
        sink.receive(
            delivery(
                1,
                pa.table(
                    {
                        "key": ["a"],
                        "n": pa.nulls(1, pa.int64()),
                    }
                ),
            )
        )
    assert rows_in(tmp_path) == [("a", 1)]
    with pytest.raises(SinkConflict, match="'n' is missing here, and may not be null there"):
        begun(Delta(tmp_path, columns=["key"]))


def test_a_table_with_other_partitions_is_refused(tmp_path: Path) -> None:
    begun(Delta(tmp_path, partition_by=["key"])).receive(delivery(0, {"a": 1}))
    with pytest.raises(SinkConflict, match=r"divided by \['key'\], and not by \['n'\]"):
        begun(Delta(tmp_path, partition_by=["n"]))
    begun(Delta(tmp_path)).receive(delivery(1, {"a": 2}))  # its partitions need not be said again


# -- who delivers -----------------------------------------------------------------------------


def test_another_storage_is_refused_unless_it_takes_over(tmp_path: Path) -> None:
    begun(Delta(tmp_path)).receive(delivery(5, {"a": 1}))
    with pytest.raises(SinkConflict, match=r"of pipeline 'p' has written .* with storage s1"):
        begun(Delta(tmp_path), run("2b"))
    old = begun(Delta(tmp_path))
    new = begun(Delta(tmp_path, take_over=True), run("2b"))
    new.receive(delivery(0, {"b": 1}))
    with pytest.raises(SinkConflict, match="of another run"):
        old.receive(delivery(6, {"a": 2}))
    new.receive(delivery(1, {"b": 2}))
    assert rows_in(tmp_path) == [("a", 1), ("b", 1), ("b", 2)]


def test_sinks_of_other_names_share_a_table(tmp_path: Path) -> None:
    for name in ("one", "other"):
        begun(Delta(tmp_path), run(sink=name)).receive(delivery(0, {name: 1}))
    assert rows_in(tmp_path) == [("one", 1), ("other", 1)]


def test_one_object_is_not_two_sinks(tmp_path: Path) -> None:
    sink = begun(Delta(tmp_path))
    sink.begin(run())
    with pytest.raises(PipelineError, match=r"one Delta is the sink 'out' .* and 'other'"):
        sink.begin(run(sink="other"))
    sink.close()
    sink.begin(run(sink="other"))


def test_a_delivery_without_begin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"before begin\(\)"):
        Delta(tmp_path).deliver(0, SCHEMA.empty_table())


def test_an_older_driver_is_refused_after_a_newer_one_has_delivered(tmp_path: Path) -> None:
    old, new = begun(Delta(tmp_path)), begun(Delta(tmp_path))
    old.receive(delivery(0, {"a": 1}, epoch=1))
    new.receive(delivery(1, {"a": 2}, epoch=2))
    for number in (1, 2):
        with pytest.raises(Fenced, match="epoch 1 is fenced: one of epoch 2"):
            old.receive(delivery(number, {"a": 9}, epoch=1))
    assert rows_in(tmp_path) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
@pytest.mark.parametrize("begins", [True, False], ids=["in an empty place", "in a table"])
def test_a_driver_that_wakes_up_inside_a_delivery_cannot_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, begins: bool
) -> None:
    keys = ["key"] if mode == "upsert" else []
    zombie = Delta(tmp_path, mode=mode, keys=keys)
    begun(zombie)
    if not begins:
        zombie.receive(delivery(0, {"a": 0}))
    commit = Delta._commit

    def sleeps(self: Delta, *more: Any) -> None:
        if self is zombie:
            monkeypatch.setattr(Delta, "_commit", commit)
            new = begun(Delta(tmp_path, mode=mode, keys=keys))
            new.receive(delivery(1, {"b": 1}, epoch=2))
        commit(self, *more)

    monkeypatch.setattr(Delta, "_commit", sleeps)
    with pytest.raises(Fenced):
        zombie.receive(delivery(1, {"b": 1}, epoch=1))
    found = [row for row in rows_in(tmp_path) if row[0] == "b"]
    assert found == [("b", 1)]


def test_of_drivers_that_deliver_the_same_first_step_at_once_one_makes_the_table(
    tmp_path: Path,
) -> None:
    for attempt in range(5):
        table = tmp_path / str(attempt)
        sinks = [begun(Delta(table)) for _ in range(3)]
        threads = [
            threading.Thread(target=sink.receive, args=[delivery(0, {"a": 1})]) for sink in sinks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert rows_in(table) == [("a", 1)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_other_writers_do_not_disturb_a_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    sink = Delta(tmp_path, mode=mode, keys=["key"] if mode == "upsert" else [])
    begun(sink).receive(delivery(0, {"a": 1}))
    commit, times = Delta._commit, iter(range(3))

    def meanwhile(self: Delta, *more: Any) -> None:
        if next(times, None) is not None:
            write_deltalake(tmp_path, delivery(9, {"theirs": 9}).rows, mode="append")
            DeltaTable(tmp_path).optimize.compact()
        commit(self, *more)

    monkeypatch.setattr(Delta, "_commit", meanwhile)
    sink.receive(delivery(1, {"b": 2}))
    ours = [row for row in rows_in(tmp_path) if row[0] != "theirs"]
    assert ours == [("a", 1), ("b", 2)]


def test_a_commit_whose_reply_is_lost_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = begun(Delta(tmp_path))
    write = module.write_deltalake

    def loses(*given: Any, **more: Any) -> None:
        write(*given, **more)
        raise OSError("the connection was reset")

    monkeypatch.setattr(module, "write_deltalake", loses)
    sink.receive(delivery(0, {"a": 1}))
    assert rows_in(tmp_path) == [("a", 1)]


def test_an_error_of_the_table_has_a_place_and_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = begun(Delta(tmp_path))

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("https://ann:secret@host/x refused")

    monkeypatch.setattr(module, "write_deltalake", fails)
    with pytest.raises(StorageError, match="could not be written") as found:
        sink.receive(delivery(0, {"a": 1}))
    assert str(tmp_path) in str(found.value)
    assert "secret" not in str(found.value)


def test_a_table_that_forgets_deliveries_is_refused(tmp_path: Path) -> None:
    begun(Delta(tmp_path)).receive(delivery(0, {"a": 1}))
    DeltaTable(tmp_path).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 1 days"}, raise_if_not_exists=False
    )
    with pytest.raises(SinkConflict, match="forgets which deliveries it has"):
        begun(Delta(tmp_path))


def test_the_table_knows_its_deliveries_after_its_log_was_cleaned(tmp_path: Path) -> None:
    sink = begun(Delta(tmp_path))
    for number in range(12):
        sink.receive(delivery(number, {"a": number}))
    table = DeltaTable(tmp_path)
    table.create_checkpoint()
    for log in (tmp_path / "_delta_log").glob("*.json"):
        if int(log.stem) < table.version():
            log.unlink()
    begun(Delta(tmp_path)).receive(delivery(11, {"a": 11}))
    assert len(rows_in(tmp_path)) == 12
    with pytest.raises(SinkConflict, match="another run"):
        begun(Delta(tmp_path), run("2b"))


def test_a_commit_names_its_step_in_the_history(tmp_path: Path) -> None:
    begun(Delta(tmp_path)).receive(delivery(4, {"a": 1}, epoch=3))
    newest = DeltaTable(tmp_path).history(1)[0]["headrace"]
    assert (newest["sink"], newest["delivery"], newest["epoch"]) == ("out", 4, 3)


def test_a_table_in_an_object_store_is_as_exact(s3: S3Server) -> None:
    place = f"{s3.location()}/table"
    options = {"AWS_ALLOW_HTTP": "true"}
    zombie, new = (begun(Delta(place, storage_options=options)) for _ in range(2))
    zombie.receive(delivery(0, {"a": 1}, epoch=1))
    for number in (0, 1, 1):
        new.receive(delivery(number, {"b": number}, epoch=2))
    with pytest.raises(Fenced):
        zombie.receive(delivery(1, {"b": 1}, epoch=1))
    found = DeltaTable(place, storage_options=options).to_pyarrow_table().to_pylist()
    assert sorted((row["key"], row["n"]) for row in found) == [("a", 1), ("b", 1)]


def test_headrace_does_not_import_the_packages_of_its_sinks() -> None:
    program = (
        "import sys, headrace; assert 'Delta' in headrace.sinks.__all__; "
        "print({'deltalake', 'sqlalchemy', 'pyiceberg'} & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = hr.sinks.Nothing
