"""An upgrade that fails on a stored row fails before newer code claims, so older code can go on."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.errors import UserCodeError
from headrace.storage import MemoryStore
from headrace.testing import Harness, drive
from tests.support.records import Item

KEYS = [f"k{n}" for n in range(50)]


class Plain(hr.Computation):
    total = hr.ValueState(int, default=0)
    held = hr.PerWorker(int, default=0, merge=int.__add__)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += record.value.n
        self.held.value += 1


def but_not(wrong: int) -> Any:
    """Return an upgrade that fails on one value."""

    def upgrade(value: int) -> str:
        if value == wrong:
            raise ValueError(f"{value} cannot be upgraded")
        return str(value)

    return upgrade


def upgraded(wrong: int, *, held: int = -1) -> hr.Computation:
    class Upgraded(hr.Computation):
        total = hr.ValueState(str, default="", version=2, upgrade={1: but_not(wrong)})
        held_ = hr.PerWorker(
            str,
            default="",
            merge=str.__add__,
            version=2,
            upgrade={1: but_not(held)},
            renamed_from="held",
        )

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.total.value += "+"

    return Upgraded()


class Table(hr.ColumnarComputation):
    sums = hr.TableState({"total": int})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.sums.at(batch.keys)
        rows.upsert(total=rows["total"] + batch.sum("n"))


class UpgradedTable(hr.ColumnarComputation):
    sums = hr.TableState(
        {"mean": float}, version=2, upgrade={1: lambda old: {"mean": old["totals"] / 2}}
    )

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        self.sums.at(batch.keys).upsert(mean=1.0)


def drawn(computation: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("tried")
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("it", computation, keys={stream: "key"})
    return pipeline


def stored_by(computation: Any) -> MemoryStore:
    store = MemoryStore()
    with drive(drawn(computation), storage=store) as t:
        push(t)
    return store


def push(t: Harness, since: int = 0) -> None:
    t.push_many("items", [Item(key, n, since + n) for n, key in enumerate(KEYS)])
    t.run()


@pytest.mark.parametrize(
    ("newer", "place"),
    [
        (lambda: upgraded(37), "computation 'it', state 'total', key 'k37'"),
        (lambda: upgraded(-1, held=27), "per-worker state 'held_'"),
    ],
)
def test_older_code_goes_on_where_newer_code_fails_to_upgrade_a_row(newer: Any, place: str) -> None:
    store = stored_by(Plain())
    before = Control(store).head()
    if place.startswith("per"):  # (whatever a worker holds)
        (held, *_) = before.per_worker["it"].values()
        newer = lambda: upgraded(-1, held=msgspec.msgpack.decode(*held.values.values()))  # noqa: E731
    with pytest.raises(UserCodeError, match="cannot be upgraded") as found:
        drive(drawn(newer()), storage=store)
    assert place in str(found.value) and "the older code can go on" in found.value.remedy
    assert Control(store).head() == before, "nothing is claimed"
    with drive(drawn(Plain()), storage=store) as t:
        push(t, 100)
        assert t.state("it", "k37") == {"total": 74}
    with drive(drawn(upgraded(-1)), storage=store) as t:
        push(t, 200)
        assert t.state("it", "k37") == {"total": "74+"}


def test_an_upgrade_of_a_table_is_tried_too() -> None:
    store = stored_by(Table())
    with pytest.raises(UserCodeError, match="totals"):
        drive(drawn(UpgradedTable()), storage=store)
    with drive(drawn(Table()), storage=store) as t:
        push(t, 100)
        assert t.state("it", "k3") == {"sums": {"total": 6}}


def test_a_change_of_the_running_pipeline_is_refused_and_the_pipeline_goes_on() -> None:
    with drive(drawn(Plain())) as t:
        push(t)
        changed = drawn(Plain()).copy()
        changed.replace("it", upgraded(37))
        with pytest.raises(UserCodeError, match="cannot be upgraded"):
            t.change(changed)
        push(t, 100)
        assert t.state("it", "k37") == {"total": 74}


def test_what_is_tried_is_bounded_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    store = stored_by(Plain())
    tried: list[int] = []

    class Counting(hr.Computation):
        total = hr.ValueState(
            str, default="", version=2, upgrade={1: lambda n: tried.append(n) or ""}
        )
        held = hr.PerWorker(int, default=0, merge=int.__add__)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            """Does nothing."""

    settings = hr.Settings(upgrade_rows=10)
    with (
        caplog.at_level(logging.WARNING),
        drive(drawn(Counting()), storage=store, settings=settings),
    ):
        assert 10 <= len(tried) < len(KEYS)
    assert "and not on all" in caplog.text
    tried.clear()
    with drive(drawn(Counting()), storage=store, settings=settings):
        assert not tried, "the storage knows this version"


def test_nothing_is_tried_where_that_is_switched_off() -> None:
    store = stored_by(Plain())
    with drive(drawn(upgraded(37)), storage=store, settings=hr.Settings(upgrade_rows=0)) as t:
        assert t is not None
