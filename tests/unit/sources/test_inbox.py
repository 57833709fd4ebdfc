"""An inbox: batches of outside processes are taken once, whole, in order; what is wrong is named."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import headrace as hr
from headrace.coordinator.messages import Poll, Wait
from headrace.driver.driver import Driver
from headrace.errors import (
    AlreadyExists,
    BadInput,
    BatchConflict,
    Damaged,
    Fenced,
    ListLags,
    NotFound,
    PipelineError,
    SourceChanged,
    StorageError,
)
from headrace.ledger.ledger import Ledger
from headrace.runners.inline import InlineRunner
from headrace.sources import Inbox, Limit, Part
from headrace.sources.inbox import Producer
from headrace.sources.inbox.batch import HEADER_BYTES
from headrace.storage import LocalStore, MemoryStore, Store
from tests.support import inboxes
from tests.support.arrow_layouts import in_chunks, relaid
from tests.support.faults import FaultStore, SimulatedCrash
from tests.support.pipelines import Collected
from tests.support.script import PassingClock

WIDE = Limit(1_000, 1 << 20)


class Hit(msgspec.Struct):
    at: int
    page: str
    note: str | None = None


@dataclass
class PlainHit:
    at: int
    page: str


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "inbox")


def producer(store: Store, name: str = "a") -> Producer:
    return Producer(store, name, type=Hit, event_time="at")


def inbox(store: Store, **more: Any) -> Inbox:
    return Inbox(store, Hit, event_time="at", **more)


def hits(*times: int) -> list[Hit]:
    return [Hit(time, f"p{time}") for time in times]


class Reading:
    """A source that is read on, step by step."""

    def __init__(self, source: Inbox, position: Any = None) -> None:
        self.source = source
        self.position = source.start() if position is None else position
        self.parts: dict[str, Part] = {}

    def step(self, limit: Limit = WIDE) -> list[int]:
        """Take a step; return its event times, read twice to see that they stay."""
        offer = self.source.offer(self.position, limit)
        if offer is None:
            return []
        self.parts = offer.parts
        if offer.empty:
            return []
        end = json.loads(json.dumps(offer.end))
        splits = self.source.splits(self.position, end)
        tables = [self.source.read(split) for split in splits]
        assert tables == [self.source.read(split) for split in splits]
        assert sum(table.num_rows for table in tables) == offer.rows
        self.position = end
        self.source.committed(end)
        return [time for table in tables for time in table.column(0).to_pylist()]

    def all(self, limit: Limit = WIDE) -> list[list[int]]:
        return list(self._steps(limit))

    def _steps(self, limit: Limit) -> Iterator[list[int]]:
        while step := self.step(limit):
            yield step


# -- appending --------------------------------------------------------------------------------


def test_batches_are_numbered_densely_and_read_in_their_order(store: Store) -> None:
    a = producer(store)
    assert [a.append(hits(3, 1)), a.append(hits(2)), a.next] == [0, 1, 2]
    assert Reading(inbox(store)).all() == [[3, 1, 2]]


RECORDS = [
    hits(1, 2),
    [PlainHit(1, "p1"), PlainHit(2, "p2")],
    [{"at": 1, "page": "p1"}, {"page": "p2", "at": 2}],
    pa.table({"page": ["p1", "p2"], "at": [1, 2], "note": [None, "x"], "more": [1, 2]}),
    pa.record_batch({"at": pa.array([1, 2], pa.int8()), "page": ["p1", "p2"], "note": [None, "x"]}),
]


@pytest.mark.parametrize(
    "records", RECORDS, ids=["structs", "dataclasses", "dicts", "table", "batch"]
)
def test_records_are_appended_in_whatever_form_they_have(store: Store, records: Any) -> None:
    declared = PlainHit if isinstance(records[0], PlainHit) else Hit
    Producer(store, "a", type=declared, event_time="at").append(records)
    source = Inbox(store, declared, event_time="at")
    offer = source.offer(source.start(), WIDE)
    assert offer is not None
    (split,) = source.splits(source.start(), offer.end)
    assert source.read(split).column("page").to_pylist() == ["p1", "p2"]


def test_a_key_that_is_no_field_is_refused_with_the_record_that_has_it(store: Store) -> None:
    for records in (
        [{"at": 1, "pgae": "x"}],
        [{"at": 1, "page": "x"}, {"at": 2, "page": "y", "n": 1}],
    ):
        with pytest.raises(BadInput, match=r"pgae|'n'") as caught:
            Producer(store, "a", type=Hit, event_time="at").append(records)
        assert f"row {len(records)} " in str(caught.value)


def test_a_producer_without_a_type_takes_tables_and_objects_as_they_are(store: Store) -> None:
    a = Producer(store, "a")
    a.append(pa.table({"at": [1], "page": ["x"], "note": pa.array([None], pa.string())}))
    a.append(hits(2))
    assert Reading(inbox(store)).all() == [[1, 2]]
    with pytest.raises(PipelineError, match="type"):
        a.append([{"at": 1}])


def test_an_event_time_that_is_no_field_of_the_type_comes_along(store: Store) -> None:
    a = Producer(store, "a", type={"page": str}, event_time="when")
    a.append([{"page": "x", "when": "2024-01-01T00:00:00Z"}])
    reading = Reading(Inbox(store, {"page": str}, event_time="when"))
    assert reading.step() == [1_704_067_200_000_000]


class Timed(msgspec.Struct):
    at: datetime
    seen: datetime | None = None


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        ("objects", Timed),
        ("mappings", Timed),
        ("mappings", {"n": int}),
        ("table", Timed),
        ("table", {"n": int}),
    ],
    ids=["objects", "mappings", "mappings, no field", "table", "table, no field"],
)
def test_times_that_name_no_zone_are_of_the_producers_zone(
    store: Store, kind: str, declared: Any
) -> None:
    aware = datetime(2024, 1, 1, 12, tzinfo=UTC)
    naive = aware.replace(tzinfo=None)
    rows = [{"at": naive, "seen": naive, "n": 1}]
    if kind != "table":  # (a column of a table has one zone)
        rows.append({"at": aware, "seen": None, "n": 2})
    objects = [Timed(row["at"], row["seen"]) for row in rows]  # type: ignore[arg-type]
    names = {"at", "seen"} if declared is Timed else {"at", "n"}
    mappings = [{name: row[name] for name in names} for row in rows]
    given: Any = {"objects": objects, "mappings": mappings, "table": pa.Table.from_pylist(rows)}[
        kind
    ]
    a = Producer(store, "a", type=declared, event_time="at", time_zone="America/New_York")
    a.append(given)
    source = Inbox(store, declared, event_time="at", time_zone="America/New_York")
    five_hours = 5 * 3_600_000_000
    found = [time - 1_704_110_400_000_000 for time in Reading(source).step()]
    assert found == [five_hours, 0][: len(rows)]


def test_the_same_batch_under_the_same_number_is_appended_once(store: Store) -> None:
    a = producer(store)
    assert a.append(hits(1, 2), sequence=0) == 0
    assert a.append(hits(1, 2), sequence=0) == 0
    assert producer(store).append(hits(1, 2), sequence=0) == 0, "nor by the next process"
    table = pa.concat_tables([pa.table({"at": [t], "page": [f"p{t}"]}) for t in (1, 2)])
    table = table.append_column("note", pa.nulls(2, pa.string()))
    assert a.append(table, sequence=0) == 0, "nor in other chunks"
    assert a.next == 1
    assert Reading(inbox(store)).all() == [[1, 2]]


@pytest.mark.parametrize("type", [Hit, None], ids=["declared", "undeclared"])
def test_the_same_batch_in_another_layout_is_appended_once(store: Store, type: Any) -> None:
    at = "at" if type else None
    a = Producer(store, "a", type=type, event_time=at)
    notes, scores = ["some", None, "more", None], [1.5, math.nan, None, -0.0]
    table = pa.table({"at": [1, 2, 3, 4], "page": ["p"] * 4, "note": notes, "score": scores})
    assert a.append(table, sequence=0) == 0
    for seed in range(8):
        rng = Random(seed)
        columns = [in_chunks(rng, relaid(rng, of.combine_chunks())) for of in table.columns]
        again = pa.table(columns, names=table.column_names)
        assert Producer(store, "a", type=type, event_time=at).append(again, sequence=0) == 0
    other = table.set_column(2, "note", pa.array(["some", None, "more", ""]))
    with pytest.raises(BatchConflict, match="batch 0 is there already, with other content"):
        a.append(other, sequence=0)


def test_dictionaries_that_cannot_be_joined_are_appended(store: Store) -> None:
    parts = [pa.DictionaryArray.from_arrays([0, 1], pa.array([page, None])) for page in "ab"]
    table = pa.table({"at": [1, 2, 3, 4], "note": pa.chunked_array(parts)})
    Producer(store, "a").append(table.append_column("page", table["note"]))
    Producer(store, "b", type=Hit, event_time="at").append(
        table.append_column("page", pa.array(list("abcd")))
    )


def test_other_records_under_a_number_that_is_taken_are_refused(store: Store) -> None:
    a = producer(store)
    a.append(hits(1))
    with pytest.raises(BatchConflict, match="batch 0 is there already, with other content"):
        a.append(hits(2), sequence=0)
    with pytest.raises(BatchConflict, match="leave a gap: the next one is 1"):
        a.append(hits(2), sequence=2)
    assert Reading(inbox(store)).all() == [[1]]


def test_a_producer_goes_on_after_the_last_batch_that_is_there(store: Store) -> None:
    for time in (1, 2, 3):
        assert producer(store).append(hits(time)) == time - 1
    assert Reading(inbox(store)).all() == [[1, 2, 3]]


def test_a_list_that_lags_misleads_no_producer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = producer(store)
    for time in (1, 2, 3):
        first.append(hits(time))
    names = store.list
    monkeypatch.setattr(store, "list", lambda prefix: names(prefix)[:1])
    assert producer(store).append(hits(4)) == 3
    assert Reading(inbox(store)).all() == [[1, 2, 3, 4]]


def test_two_processes_under_one_name_get_numbers_of_their_own(store: Store) -> None:
    one, other = producer(store), producer(store)
    assert [one.append(hits(1)), other.append(hits(1)), one.append(hits(3))] == [0, 1, 2]
    assert Reading(inbox(store)).all() == [[1, 1, 3]]


@pytest.mark.parametrize("act", ["lost reply", "error"])
def test_an_append_whose_reply_was_lost_is_settled_by_reading_back(store: Store, act: str) -> None:
    failing = FaultStore(store)
    a = producer(failing)
    failing._at, failing._act = failing.operations + 1, act
    if act == "error":
        with pytest.raises(StorageError, match="hiccupped"):
            a.append(hits(1))
    assert a.append(hits(1), sequence=0) == 0
    assert Reading(inbox(store)).all() == [[1]]


def test_after_its_end_a_producer_appends_nothing(store: Store) -> None:
    a = producer(store)
    a.append(hits(1))
    a.finish()
    a.finish()
    producer(store).finish()
    with pytest.raises(BatchConflict, match="has finished"):
        a.append(hits(2))
    with pytest.raises(BatchConflict, match="has finished"):
        producer(store).promise(9)
    assert a.append(hits(1), sequence=0) == 0, "what was appended before is still known"
    assert a.next == 2


BAD = [
    ([Hit(1, "x"), Hit("soon", "x")], BadInput, "'at' wants int", "row 2"),  # type: ignore[arg-type]
    ([Hit(1, "x"), Hit(2, None)], BadInput, "'page'", "row 2"),  # type: ignore[arg-type]
    ([{"at": 1, "page": "x"}, {"at": 2}], BadInput, "'page' is missing", "row 2"),
    ([{"at": 1, "page": "x"}, {"at": 1, "page": 7}], BadInput, "'page' wants str", "row 2"),
    (pa.table({"at": [1]}), BadInput, "no column 'page'", "row 1"),
    (
        pa.table({"at": [1.0, 1.5], "page": ["x", "y"], "note": ["", ""]}),
        BadInput,
        "'at' cannot be read as int.*: 1.5",
        "row 2",
    ),
    ([Hit(1, "x"), object()], BadInput, "has no attribute 'at'", "row 2"),
]


@pytest.mark.parametrize(("records", "kind", "says", "row"), BAD)
def test_a_record_of_another_type_is_named_and_nothing_is_appended(
    store: Store, records: Any, kind: Any, says: str, row: str
) -> None:
    a = producer(store)
    with pytest.raises(kind, match=says) as caught:
        a.append(records)
    assert f"producer 'a', {row} of what is appended" in str(caught.value)
    assert "nothing was appended" in str(caught.value)
    assert a.next == 0


def test_a_record_before_what_was_promised_is_refused_also_by_the_next_process(
    store: Store,
) -> None:
    producer(store).append(hits(5), promise=5)
    with pytest.raises(BadInput, match="before the time that was promised") as caught:
        producer(store).append(hits(7, 4))
    assert "row 2" in str(caught.value)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".a", "a b", "ä", "x" * 65])
def test_a_name_that_can_be_no_file_is_refused(store: Store, name: str) -> None:
    with pytest.raises(PipelineError, match="cannot be the name of a producer"):
        Producer(store, name)


# -- dividing ---------------------------------------------------------------------------------


def test_a_batch_belongs_to_one_step_and_a_step_takes_as_many_as_fit(store: Store) -> None:
    a = producer(store)
    for start in (0, 3, 6, 9):
        a.append(hits(*range(start, start + 3)))
    steps = Reading(inbox(store)).all(Limit(7, 1 << 20))
    assert [len(step) for step in steps] == [6, 6]
    assert Reading(inbox(store)).all(Limit(1, 1)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_producers_are_taken_in_turn_and_none_waits_behind_a_busy_one(store: Store) -> None:
    busy, large = producer(store, "busy"), producer(store, "large")
    for time in range(100):
        busy.append(hits(time))
    large.append(hits(*range(1_000, 1_050)))
    reading = Reading(inbox(store))
    steps = [reading.step(Limit(10, 1 << 20)) for _ in range(3)]
    assert any(1_000 in step for step in steps)
    rest = [time for step in reading.all() for time in step]
    in_order = [time for step in [*steps, rest] for time in step if time < 1_000]
    assert in_order == list(range(100))


def test_a_paused_producer_is_left_alone(store: Store) -> None:
    producer(store, "a").append(hits(1))
    producer(store, "b").append(hits(2))
    reading = Reading(inbox(store))
    assert reading.step(Limit(10, 1 << 20, frozenset("a"))) == [2]
    assert reading.step() == [1]


def test_a_look_without_news_costs_one_look_a_producer_and_not_a_batch(store: Store) -> None:
    for name in "abc":
        for time in range(20):
            producer(store, name).append(hits(time))
    producer(store, "d").finish()
    counting = FaultStore(store)
    reading = Reading(inbox(counting))
    reading.all()
    before = counting.operations
    assert reading.source.offer(reading.position, WIDE) is None
    assert counting.operations - before == 4, "a list, and a look at each that has not finished"


def test_what_producers_say_of_their_time_and_end_is_told_with_the_offer(store: Store) -> None:
    a, b = producer(store, "a"), producer(store, "b")
    reading = Reading(inbox(store, producers=("a", "b", "c")))
    a.append(hits(1), promise=1)
    a.promise(8)
    a.promise(5)
    b.finish()
    assert a.next == 2, "what was promised already is not promised again"
    assert reading.step() == [1]
    assert reading.parts == {
        "a": Part(promise_us=8),
        "b": Part(final=True),
        "c": Part(awaited=True),
    }
    assert reading.source.offer(reading.position, WIDE) is None


def test_a_producer_that_only_came_is_told_of_once(store: Store) -> None:
    reading = Reading(inbox(store))
    assert reading.source.offer(reading.position, WIDE) is None
    producer(store)
    offer = reading.source.offer(reading.position, WIDE)
    assert offer is not None
    assert (offer.empty, offer.parts) == (True, {"a": Part()})
    assert reading.source.offer(reading.position, WIDE) is None


def test_the_input_ends_when_all_that_are_expected_have_finished(store: Store) -> None:
    reading = Reading(inbox(store, producers=("a", "b")))
    a = producer(store, "a")
    a.append(hits(1))
    a.finish()
    offer = reading.source.offer(reading.position, WIDE)
    assert offer is not None
    assert not offer.final
    producer(store, "b").finish()
    offer = reading.source.offer(reading.position, WIDE)
    assert offer is not None
    assert (offer.final, offer.empty, offer.rows) == (True, False, 1)
    again = inbox(store, producers=("a", "b")).offer(offer.end, WIDE)
    assert again is not None
    assert (again.final, again.empty) == (True, True), "also for who comes later"


def test_an_inbox_open_to_all_never_ends(store: Store) -> None:
    producer(store).finish()
    reading = Reading(inbox(store))
    reading.step()
    assert reading.parts == {"a": Part(final=True)}
    assert reading.source.offer(reading.position, WIDE) is None


def test_a_producer_that_has_finished_is_named_until_a_step_has_recorded_it(store: Store) -> None:
    producer(store, "a").finish()
    producer(store, "b").append(hits(1))
    reading = Reading(inbox(store))
    for _ in range(2):
        offer = reading.source.offer(reading.position, WIDE)
        assert offer is not None
        assert offer.parts == {"a": Part(final=True), "b": Part()}
    reading.step()
    assert reading.source.offer(reading.position, WIDE) is None
    producer(store, "c").append(hits(2))
    reading.step()
    assert set(reading.parts) == {"b", "c"}


@pytest.mark.parametrize("declared", [False, True])
def test_a_pipeline_does_not_remember_producers_that_have_long_finished(
    store: Store, *, declared: bool
) -> None:
    storage, told = MemoryStore(), Collected()
    expect = ("p0",) if declared else ()
    for number in range(8):
        feeding = inboxes.producer(store, f"p{number}")
        feeding.append(inboxes.items(f"p{number}", number, 2))
        feeding.finish()
        drawn = inboxes.pipeline(store, told.sink("told"), expect=expect)
        inboxes.run_until_idle(drawn, storage)
    head = Ledger(storage).open()
    assert head is not None
    known = head.frontiers_of("items").parts
    assert set(known) == {"p6", "p7", *expect}
    assert all(part.ended for part in known.values())


def test_producers_that_are_not_expected_are_refused_unless_they_are_accepted(store: Store) -> None:
    producer(store, "stray").append(hits(1))
    with pytest.raises(BadInput, match="producer 'stray' is not expected"):
        Reading(inbox(store, producers=("a",))).step()
    reading = Reading(inbox(store, producers=("a",), others="accept"))
    assert reading.step() == [1]
    assert set(reading.parts) == {"a", "stray"}
    for wrong in ({"others": "refuse"}, {"others": "some"}, {"producers": ("a/b",)}):
        with pytest.raises(PipelineError):
            inbox(store, **wrong)


# -- what is wrong ----------------------------------------------------------------------------


def stored(store: Store, name: str) -> bytes:
    return store.read(name)


def put(store: Store, name: str, data: bytes) -> None:
    store.delete(name)
    store.write(name, data)


def test_every_flipped_byte_and_every_cut_is_named_and_never_computed_with() -> None:
    store = MemoryStore()
    producer(store).append(hits(1, 2, 3))
    name = "from-a/000000000000"
    whole = stored(store, name)
    damaged = [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in range(len(whole))]
    torn = [whole[:at] for at in range(len(whole))]
    for data in [*damaged, *torn, whole + b"x"]:
        put(store, name, data)
        with pytest.raises(Damaged, match=name):
            Reading(inbox(store)).step()
    put(store, name, whole)
    assert Reading(inbox(store)).step() == [1, 2, 3]


def test_a_batch_under_another_name_is_not_taken_for_that_one(store: Store) -> None:
    producer(store, "a").append(hits(1))
    producer(store, "b").append(hits(2))
    put(store, "from-b/000000000000", stored(store, "from-a/000000000000"))
    with pytest.raises(Damaged, match="not what was written there"):
        Reading(inbox(store)).step()


def test_a_batch_that_is_replaced_between_offer_and_read_is_noticed(store: Store) -> None:
    producer(store).append(hits(1))
    source = inbox(store)
    offer = source.offer(source.start(), WIDE)
    assert offer is not None
    splits = source.splits(source.start(), offer.end)
    store.delete("from-a/000000000000")
    with pytest.raises(SourceChanged, match="is gone"):
        source.read(splits[0])
    producer(store).append(hits(2))
    with pytest.raises(SourceChanged, match="replaced"):
        source.read(splits[0])


def test_a_bad_batch_is_named_with_its_row_and_can_be_mended_by_its_producer(store: Store) -> None:
    unchecked = Producer(store, "a")
    unchecked.append(pa.table({"at": [1, 2, 3], "page": ["x", None, "z"], "note": ["", "", ""]}))
    reading = Reading(inbox(store))
    with pytest.raises(BadInput, match="'page' is null or missing") as caught:
        reading.step()
    assert "from-a/000000000000, row 2" in str(caught.value)
    assert "append that sequence again" in str(caught.value)
    store.delete("from-a/000000000000")
    producer(store).append(hits(1, 2, 3), sequence=0)
    assert Reading(inbox(store), reading.position).step() == [1, 2, 3]


@pytest.mark.parametrize("bad", range(4))
@pytest.mark.parametrize("reopened", [False, True])
def test_a_bad_batch_can_be_mended_also_where_its_producer_has_gone_on(
    store: Store, bad: int, reopened: bool
) -> None:
    unchecked = Producer(store, "a")
    for time in range(4):
        page = None if time == bad else "x"
        unchecked.append(pa.table({"at": [time], "page": [page], "note": [""]}))
    with pytest.raises(BadInput, match=f"from-a/{bad:012d}, row 1"):
        Reading(inbox(store)).step()
    store.delete(f"from-a/{bad:012d}")
    mending = producer(store) if reopened else unchecked
    assert mending.append(hits(10 + bad), sequence=bad) == bad
    assert mending.append(hits(10 + bad), sequence=bad) == bad
    assert batches(store) == [0, 1, 2, 3]
    reading = Reading(inbox(store, clean=True))
    assert reading.step() == [10 + time if time == bad else time for time in range(4)]
    assert batches(store) == [2, 3]
    assert producer(store).append(hits(4)) == 4
    assert mending.append(hits(5)) == 5
    assert reading.all() == [[4, 5]]
    assert mending.append(hits(0), sequence=1) == 1, "what was recorded and cleaned away stays so"
    assert batches(store) == [4, 5]


def test_two_batches_that_were_removed_are_mended_in_their_order(store: Store) -> None:
    a = producer(store)
    for time in range(3):
        a.append(hits(time))
    for number in (0, 1):
        store.delete(f"from-a/{number:012d}")
    with pytest.raises(BatchConflict, match="batches 0 and 1 were removed"):
        a.append(hits(1), sequence=1)
    for number in (0, 1):
        assert a.append(hits(number), sequence=number) == number
    assert Reading(inbox(store)).all() == [[0, 1, 2]]


@pytest.mark.parametrize("number", range(4))
def test_what_is_repeated_behind_a_ghost_was_recorded_and_is_not_taken_for_removed(
    store: Store, number: int
) -> None:
    a, ended = producer(store), producer(other := MemoryStore())
    reading = Reading(inbox(store, clean=True))
    for time in range(6):
        a.append(hits(time))
        ended.append(hits(10 + time))
        reading.step()
    for ghost in [f"from-a/{number - 1:012d}"] if number else []:
        store.create(ghost, other.read(ghost))
    before = batches(store)
    assert a.append(hits(number), sequence=number) == number
    assert batches(store) == before


def test_a_batch_may_be_repeated_or_mended_after_a_later_promise(store: Store) -> None:
    a = producer(store)
    a.append(hits(5))
    a.promise(9)
    assert a.append(hits(5), sequence=0) == 0
    store.delete("from-a/000000000000")
    assert a.append(hits(5), sequence=0) == 0
    a.append(hits(9))
    assert Reading(inbox(store)).all() == [[5, 9]]


def test_a_column_that_is_missing_or_cannot_be_converted_is_named(store: Store) -> None:
    Producer(store, "a").append(pa.table({"page": ["x"], "note": [""]}))
    with pytest.raises(BadInput, match="no column 'at'"):
        Reading(inbox(store)).step()
    other = MemoryStore()
    table = pa.table({"at": [1, 2], "page": ["x", "y"], "note": ["", ""], "n": [7.0, 7.5]})
    Producer(other, "a").append(table)
    with pytest.raises(BadInput, match=r"'n' cannot be read as int.*: 7\.5") as caught:
        Reading(Inbox(other, {"at": int, "n": int}, event_time="at")).step()
    assert "row 2" in str(caught.value)


def test_another_inbox_in_its_place_is_noticed(tmp_path: Path) -> None:
    first, second = LocalStore(tmp_path / "first"), LocalStore(tmp_path / "second")
    for store in (first, second):
        producer(store).append(hits(1))
    reading = Reading(inbox(first))
    reading.step()
    with pytest.raises(SourceChanged, match="not the inbox that was read before"):
        Reading(inbox(second), reading.position).step()


def test_a_directory_of_something_else_is_no_inbox(tmp_path: Path) -> None:
    (tmp_path / "inbox").write_text("milk, eggs")
    with pytest.raises(Damaged, match="not what an inbox has there"):
        Producer(tmp_path, "a")


# -- cleaning ---------------------------------------------------------------------------------


def batches(store: Store, name: str = "a") -> list[int]:
    return [int(name[-12:]) for name in store.list(f"from-{name}/0")]


def test_what_committed_steps_have_read_is_cleaned_but_for_the_last_two(store: Store) -> None:
    a = producer(store)
    for time in (1, 2, 3):
        a.append(hits(time))
    reading = Reading(inbox(store, clean=True))
    assert reading.step() == [1, 2, 3]
    assert batches(store) == [1, 2]
    a.append(hits(4))
    assert producer(store).append(hits(5)) == 4, "the next process goes on after it"
    assert reading.step() == [4, 5]
    assert batches(store) == [3, 4]


def test_what_a_driver_left_behind_that_ended_before_it_cleaned_is_cleaned(store: Store) -> None:
    a = producer(store)
    for time in (1, 2, 3):
        a.append(hits(time))
    reading = Reading(inbox(store))
    reading.step()
    a.append(hits(4))
    assert Reading(inbox(store, clean=True), reading.position).step() == [4]
    assert batches(store) == [2, 3]


class Lagging(MemoryStore):
    """A store whose list does not show some names."""

    hidden: frozenset[str] = frozenset()

    def list(self, prefix: str) -> list[str]:
        return [name for name in super().list(prefix) if name not in self.hidden]


def test_what_a_list_does_not_show_yet_is_cleaned_before_what_comes_later() -> None:
    """Else a producer that stood still would append where there was something already."""
    store = Lagging()
    a = producer(store)
    for number in range(4):
        a.append(hits(number))
    stalled = producer(store)
    for number in range(4, 8):
        a.append(hits(number))
    store.hidden = frozenset(f"from-a/{number:012d}" for number in range(2, 8))
    reading = Reading(inbox(store, clean=True))
    while reading.step():
        pass
    for number in range(8, 12):
        a.append(hits(number))
    while reading.step():
        pass
    store.hidden = frozenset()
    assert batches(store) == [10, 11]
    assert stalled.append(hits(99)) == 12, "it goes on after what is there"
    assert reading.step() == [99]


def test_a_driver_that_was_overtaken_says_so_where_its_input_was_cleaned_away() -> None:
    place, storage, collected = MemoryStore(), MemoryStore(), Collected()
    appending = inboxes.producer(place, "a")

    def drawn() -> hr.Pipeline:
        return inboxes.pipeline(place, collected.sink("told"), clean=True)

    def append(*batches: int) -> None:
        for batch in batches:
            appending.append(inboxes.items("a", batch, 2))

    append(0, 1)
    inboxes.run_until_idle(drawn(), storage)
    old = Driver(drawn(), storage, InlineRunner(), workers=1, bins=16)
    old.open()
    while not isinstance(old.upcoming, Poll):
        old.turn()
    append(2, 3, 4)
    inboxes.run_until_idle(drawn(), storage)
    with pytest.raises(Fenced):
        old.turn()
    old.close()


def test_a_driver_that_was_overtaken_while_it_waits_says_so_though_nothing_comes_any_more() -> None:
    place, storage, collected = MemoryStore(), MemoryStore(), Collected()
    appending = inboxes.producer(place, "a")

    def drawn() -> hr.Pipeline:
        return inboxes.pipeline(place, collected.sink("told"), clean=True)

    for batch in (0, 1):
        appending.append(inboxes.items("a", batch, 2))
    old = Driver(drawn(), storage, InlineRunner(), workers=1, bins=16, clock=PassingClock())
    old.open()
    while not isinstance(old.upcoming, Wait):
        old.turn()
    for batch in (2, 3, 4):
        appending.append(inboxes.items("a", batch, 2))
    inboxes.run_until_idle(drawn(), storage)
    with pytest.raises(Fenced):
        for _ in range(1_000):
            old.turn()
    old.close()


def test_a_batch_that_was_cleaned_away_is_not_appended_again(store: Store) -> None:
    a = producer(store)
    for number in range(4):
        a.append(hits(number), sequence=number)
    reading = Reading(inbox(store, clean=True))
    reading.step()
    assert a.append(hits(1), sequence=1) == 1
    assert producer(store).append(hits(0), sequence=0) == 0
    assert batches(store) == [2, 3]
    assert reading.step() == []


@pytest.mark.parametrize("left_behind", [False, True])
@pytest.mark.parametrize("newest", range(3))
def test_a_list_that_shows_only_what_was_cleaned_away_opens_no_producer(
    store: Store, monkeypatch: pytest.MonkeyPatch, newest: int, left_behind: bool
) -> None:
    """Nor where a process that stalled, and ended, has left such a batch behind."""
    a, ended = producer(store), producer(other := MemoryStore())
    reading = Reading(inbox(store, clean=True))
    for time in range(6):
        a.append(hits(time))
        ended.append(hits(10 + time))
        reading.step()
    behind = [f"from-a/{number:012d}" for number in range(newest + 1)]
    if left_behind:
        store.create(behind[-1], other.read(behind[-1]))
        assert batches(store) == [newest, 4, 5]
    names = store.list
    monkeypatch.setattr(
        store, "list", lambda prefix: behind if prefix.startswith("from-a/") else names(prefix)
    )
    with pytest.raises(ListLags, match="was cleaned away"):
        producer(store)
    assert a.append(hits(7)) == 6, "who knows more than the list goes on"
    monkeypatch.undo()
    assert producer(store).append(hits(8)) == 7
    assert reading.all() == [[7, 8]]


def test_a_new_pipeline_on_an_inbox_that_another_has_cleaned_is_told_so(store: Store) -> None:
    a = producer(store)
    for time in (1, 2, 3):
        a.append(hits(time))
    Reading(inbox(store, clean=True)).step()
    with pytest.raises(SourceChanged, match="batch 0 of producer 'a' was read by another"):
        Reading(inbox(store)).step()


class Stalling(FaultStore):
    """Before it creates a batch, or thereafter, something else happens."""

    def __init__(self, inner: Store, *, after: bool = False) -> None:
        super().__init__(inner)
        self.meanwhile: Any = None
        self._after = after

    def create(self, name: str, data: bytes) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None and not self._after:
            meanwhile()
        self.inner.create(name, data)
        if meanwhile is not None and self._after:
            meanwhile()


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("numbered", [False, True])
def test_a_producer_that_stalls_past_a_clean_up_loses_nothing_and_doubles_nothing(
    store: Store, before: int, numbered: bool
) -> None:
    """The hole of create-if-absent: the name of a batch that was cleaned away is free again."""
    stalling = Stalling(store)
    stale = producer(stalling)
    for time in range(before):
        stale.append(hits(time))
    reading = Reading(inbox(store, clean=True))
    found = [time for step in reading.all() for time in step]

    def meanwhile() -> None:
        """Another process of this name goes on, is recorded, and is cleaned away."""
        new = producer(store)
        for time in (100, 101, 102):
            new.append(hits(time))
            found.extend(reading.step())
        with pytest.raises(NotFound):
            store.read(f"from-a/{before:012d}")

    stalling.meanwhile = meanwhile
    number = stale.append(hits(100 if numbered else 200), sequence=before if numbered else None)
    found += [time for step in reading.all() for time in step]
    assert number == (before if numbered else before + 3)
    assert found == [*range(before), 100, 101, 102, *([] if numbered else [200])]
    again = Reading(inbox(store, clean=True), reading.position)
    assert again.step() == [], "nor does what it left behind come to a later driver"


def test_a_stalled_producer_leaves_nothing_that_another_could_meet(store: Store) -> None:
    stalling = Stalling(store)
    stale = producer(stalling)
    reading = Reading(inbox(store, clean=True))

    def meanwhile() -> None:
        for time in (1, 2, 3):
            producer(store).append(hits(time))
            reading.step()

    stalling.meanwhile = meanwhile
    stale.append(hits(4))
    assert batches(store) == [1, 2, 3]
    assert producer(store).append(hits(1), sequence=0) == 0, "what was recorded may be repeated"
    assert reading.step() == [4]


def test_what_a_producer_leaves_behind_that_ends_in_such_a_stall_is_swept(store: Store) -> None:
    stalling = Stalling(FaultStore(store, 0, "crash before"))
    stale = producer(stalling)
    reading = Reading(inbox(store, clean=True))

    def meanwhile() -> None:
        for time in (1, 2, 3):
            producer(store).append(hits(time))
            reading.step()

    stalling.meanwhile = meanwhile
    ending = stalling.inner
    assert isinstance(ending, FaultStore)
    ending._at = ending.operations + 3
    with pytest.raises(SimulatedCrash):
        stale.append(hits(4))
    assert batches(store) == [0, 1, 2], "batch 0 is a ghost"
    producer(store).append(hits(4))
    assert Reading(inbox(store, clean=True), reading.position).step() == [4]
    assert batches(store) == [2, 3]


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_producer_that_is_slower_than_the_pipeline_takes_its_own_batch_for_its_own(
    store: Store, before: int, others: int
) -> None:
    """Its batch is read, and what came before is cleaned away, before it looks whether that is there."""
    stalling = Stalling(store, after=True)
    slow = producer(stalling)
    reading = Reading(inbox(store, clean=True))
    for time in range(before):
        slow.append(hits(time))
        assert reading.step() == [time]

    def meanwhile() -> None:
        assert reading.step() == [before]
        for time in range(others):
            producer(store).append(hits(100 + time))
            assert reading.step() == [100 + time]

    stalling.meanwhile = meanwhile
    assert slow.append(hits(before)) == before
    last = before + others
    assert batches(store) == [*range(max(last - 1, 0), last + 1)]
    assert slow.append(hits(7)) == last + 1
    again = Reading(inbox(store, clean=True), reading.position)
    assert again.all() == [[7]], "and a later driver finds its place"


def test_a_producer_that_cannot_know_what_became_of_its_batch_says_so(store: Store) -> None:
    """Others went on so far that neither its batch is there nor those beside it."""
    stalling = Stalling(store, after=True)
    slow = producer(stalling)
    reading = Reading(inbox(store, clean=True))
    slow.append(hits(0))

    def meanwhile() -> None:
        for time in (2, 3, 4, 5):
            producer(store).append(hits(time))
        assert reading.step() == [0, 1, 2, 3, 4, 5]

    stalling.meanwhile = meanwhile
    with pytest.raises(StorageError, match="may have been appended"):
        slow.append(hits(1), sequence=1)
    assert slow.append(hits(1), sequence=1) == 1, "it can be repeated"
    assert slow.append(hits(6)) == 6
    assert reading.all() == [[6]]


class SentAgain(Stalling):
    """A batch is sent, and nothing is told of it, nor can it be read back; then it is sent again.

    Args:
        lands: whether it is there after the first time.

    Attributes:
        meanwhile: what happens between the two times.
        then: what happens after the second.
    """

    def __init__(self, inner: Store, *, lands: bool) -> None:
        super().__init__(inner)
        self.then: Any = None
        self._lands = lands
        self._failing = ""

    def create(self, name: str, data: bytes) -> None:
        if self.meanwhile is not None and not self._failing:
            if self._lands:
                self.inner.create(name, data)
            self._failing = name
            raise StorageError("the reply was lost")
        super().create(name, data)
        if self.then is not None:
            self.then()

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name == self._failing and self.meanwhile is not None:
            raise StorageError("the disk hiccupped")
        return self.inner.read(name, offset, length)


def append_again(stale: Producer, sequence: int, lands: bool) -> int:
    """Append what may have been appended; return how often that is there."""
    if lands:
        assert stale.append(hits(50), sequence=sequence) == sequence, "it can be repeated"
        return 1
    with contextlib.suppress(BatchConflict):  # the number is another's
        assert stale.append(hits(50), sequence=sequence) == sequence
    return 0


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("others", range(5))
@pytest.mark.parametrize("lands", [True, False])
def test_a_batch_that_is_sent_again_past_a_clean_up_is_neither_lost_nor_doubled(
    store: Store, before: int, others: int, lands: bool
) -> None:
    again = SentAgain(store, lands=lands)
    stale = producer(again)
    reading = Reading(inbox(store, clean=True))
    for time in range(before):
        stale.append(hits(time))
    found = [time for step in reading.all() for time in step]

    def meanwhile() -> None:
        for time in range(others):
            producer(store).append(hits(100 + time))
            found.extend(reading.step())

    again.meanwhile = meanwhile
    try:
        stale.append(hits(50))
        times = 1
    except StorageError as error:
        assert "may have been appended" in str(error)
        assert others >= 2, "which takes a clean-up"
        times = append_again(stale, before, lands)
    stale.append(hits(60))
    found += [time for step in reading.all() for time in step]
    assert sorted(found) == sorted([*range(before), *range(100, 100 + others), *([50] * times), 60])
    assert Reading(inbox(store, clean=True), reading.position).step() == []


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("others", range(5))
def test_a_batch_that_met_itself_and_was_cleaned_away_is_not_appended_again(
    store: Store, before: int, others: int
) -> None:
    """The storage's client sent it twice: the first took the name, which is free when one looks."""
    meeting = Stalling(store, after=True)
    slow = producer(meeting)
    reading = Reading(inbox(store, clean=True))
    for time in range(before):
        slow.append(hits(time))
    found = [time for step in reading.all() for time in step]

    def meanwhile() -> None:
        for time in range(others):
            producer(store).append(hits(100 + time))
            found.extend(reading.step())
        raise AlreadyExists("it exists")

    meeting.meanwhile = meanwhile
    try:
        slow.append(hits(50))
    except StorageError as error:
        assert "may have been appended" in str(error)
        assert slow.append(hits(50), sequence=before) == before
    found += [time for step in reading.all() for time in step]
    assert sorted(found) == [*range(before), 50, *range(100, 100 + others)]


def test_a_batch_behind_one_that_was_sent_again_after_its_clean_up_is_not_acknowledged(
    store: Store,
) -> None:
    """Three processes: the one that sends again must not bring back what another one follows."""
    again = SentAgain(store, lands=True)
    producer(store).append(hits(0))
    stale = producer(again)
    reading = Reading(inbox(store, clean=True))
    behind: list[Producer] = []

    def meanwhile() -> None:
        behind.append(producer(store))
        for time in (2, 3, 4):
            producer(store).append(hits(time))
        assert reading.all() == [[0, 1, 2, 3, 4]]

    def then() -> None:
        again.then = None
        with pytest.raises(BatchConflict, match="is not the one that batch 2 was to follow"):
            behind[0].append(hits(7))

    again.meanwhile, again.then = meanwhile, then
    with contextlib.suppress(StorageError):
        stale.append(hits(1), sequence=1)
    assert reading.all() == []


def test_a_batch_behind_the_ghost_of_another_is_not_acknowledged(store: Store) -> None:
    """Two stalled processes: the ghost of the first must not pass for the second's predecessor."""
    first = Stalling(store)
    producer(store).append(hits(0))
    stale = producer(first)
    second = producer(store)
    reading = Reading(inbox(store, clean=True))

    def meanwhile() -> None:
        second.append(hits(1))
        behind = Stalling(store)
        stalled = producer(behind)
        behind.meanwhile = lambda: go_on(stalled)
        with pytest.raises(BatchConflict, match="is not the one that batch 2 was to follow"):
            stalled.append(hits(7))

    def go_on(stalled: Producer) -> None:
        new = producer(store)
        for time in (2, 3, 4):
            new.append(hits(time))
            reading.step()
        store.create("from-a/000000000001", ghost())

    def ghost() -> bytes:
        other = MemoryStore()
        for time in (0, 99):
            producer(other).append(hits(time))
        return other.read("from-a/000000000001")

    first.meanwhile = meanwhile
    stale.append(hits(5))
    assert reading.all() == [[5]]


def test_the_header_is_of_the_size_that_is_read(store: Store) -> None:
    a = producer(store)
    a.finish()
    assert len(store.read("from-a/000000000000")) == HEADER_BYTES == 64


@pytest.mark.parametrize("cleans", [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize("same", [True, False], ids=["one object", "two objects"])
def test_two_injectors_of_an_inbox_that_is_cleaned_are_refused(
    store: Store, cleans: tuple[bool, bool], same: bool
) -> None:
    """The one would delete what the other has not read."""
    sources = [
        hr.sources.Inbox(store, inboxes.Item, event_time="at", clean=clean) for clean in cleans
    ]
    if same:
        sources = [sources[0], sources[0]]
    drawn = hr.Pipeline("both")
    streams = [drawn.inject(name, one) for name, one in zip("ab", sources, strict=True)]
    drawn.compute("tell", inboxes.Tell(), keys=dict.fromkeys(streams, "who"))
    if any(one.consumes for one in sources):
        with pytest.raises(PipelineError, match="'a' and 'b' read the same Inbox") as caught:
            drawn.check_complete()
        assert "add one injector" in str(caught.value)
    else:
        drawn.check_complete()
