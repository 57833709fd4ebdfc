"""Posts: what a key sends to itself arrives at its time, once, whatever it carries; mistakes are named."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import PipelineError, SchemaChanged, UserCodeError
from headrace.eventtime.timestamps import MAX_TIME
from headrace.ledger.ledger import Ledger
from headrace.state.buffer import RecordBuffer
from headrace.storage import MemoryStore
from tests.support.durations import us
from tests.support.pipelines import Collected, run_inline, run_until_read


class Item(msgspec.Struct):
    key: int
    n: int
    at: int


def drawn(
    computation: Any, items: list[Item], *, delay: int = 0, **compute: Any
) -> tuple[hr.Pipeline, Collected]:
    pipeline, collected = hr.Pipeline("test"), Collected()
    source = hr.sources.Iterable(items, Item, event_time="at")
    stream = pipeline.inject("items", source, watermark=hr.bounded_delay(us(delay)))
    node = pipeline.compute("it", computation, keys={stream: "key"}, **compute)
    for name in node.outputs:
        pipeline.sink(name, node[name], collected.sink(name))
    return pipeline, collected


def ran(computation: Any, items: list[Item], **compute: Any) -> dict[str, list[tuple[Any, ...]]]:
    pipeline, collected = drawn(computation, items, **compute)
    run_inline(pipeline, workers=2, rows=2)
    return {
        name: [row for step in steps for row in step] for name, steps in collected.rows().items()
    }


# -- what arrives, and when -------------------------------------------------------------------


class Reminded(hr.Computation):
    """Reminds itself of each record, so much later."""

    later = hr.Posted(int)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.stream == "later":
            ctx.produce("out", f"{record.value}")
        else:
            ctx.post(record.timestamp_us + 10, record.value.n)


class RemindedInBulk(hr.ColumnarComputation):
    """The same for all keys at once."""

    later = hr.Posted(int)
    out = hr.Output(str)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        if batch.stream == "later":
            ctx.produce("out", batch.row_keys, [str(n) for n in batch["value"]])
        else:
            ctx.post(batch.row_keys, batch["n"], times_us=batch.timestamps_us + 10)


@pytest.mark.parametrize("kind", [Reminded, RemindedInBulk])
def test_a_post_arrives_in_the_step_in_which_the_watermark_reaches_it(kind: Any) -> None:
    items = [Item(1, 7, 0), Item(2, 0, 9), Item(2, 0, 10), Item(2, 0, 11)]
    pipeline, collected = drawn(kind(), items)
    run_inline(pipeline, rows=1)
    steps = {step: rows for step, rows in collected.steps["out"] if rows}
    assert min(steps) == 3, "the claim is step 0, and the record at 10 comes with step 3"
    assert steps[3] == [(1, 10, "7")]


@pytest.mark.parametrize("kind", [Reminded, RemindedInBulk])
def test_posts_behind_the_watermark_arrive_in_the_same_step_and_are_never_late(kind: Any) -> None:
    items = [Item(1, 0, 100), Item(1, 3, 5), Item(1, 4, 4)]
    rows = ran(kind(), items, late="process")
    assert sorted(rows["out"]) == [(1, 14, "4"), (1, 15, "3"), (1, 110, "0")]


class AtTheEnd(hr.Computation):
    last = hr.Posted(int)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.stream == "last":
            assert ctx.input_ended
            ctx.produce("out", record.value)
        else:
            ctx.post(MAX_TIME, record.value.n)


@pytest.mark.parametrize("cached_bytes", [0, 1 << 30])
def test_posts_to_the_end_of_time_arrive_when_the_input_has_ended(cached_bytes: int) -> None:
    items = [Item(number % 3, number, number) for number in range(9)]
    store = MemoryStore()
    way: dict[str, Any] = {"rows": 1, "workers": 2, "cached_bytes": cached_bytes}
    run_until_read(drawn(AtTheEnd(), items)[0], store, 5, **way)
    pipeline, collected = drawn(AtTheEnd(), items)
    run_inline(pipeline, store=store, **way)
    said = [(key, n) for step in collected.rows()["out"] for key, _, n in step]
    assert sorted(said) == sorted((number % 3, number) for number in range(9))
    assert [n for key, n in said if key == 1] == [1, 4, 7], "as they were sent"


class Inner(msgspec.Struct):
    words: list[str]
    by: dict[str, int]


class Everything(msgspec.Struct):
    """A value of every kind."""

    text: str
    ratio: float
    when: datetime
    day: date
    wait: timedelta
    maybe: int | None
    inner: Inner
    raw: bytes


def everything(n: int) -> Everything:
    return Everything(
        text=f"t{n}",
        ratio=n,
        when=datetime(2026, 1, 1, tzinfo=UTC),
        day=date(2026, 1, 2),
        wait=timedelta(seconds=n),
        maybe=None if n % 2 else n,
        inner=Inner(["a"] * n, {"k": n}),
        raw=bytes([n]),
    )


class Carries(hr.Computation):
    later = hr.Posted(Everything)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.stream == "later":
            ctx.produce("out", repr(record.value))
            return
        value = everything(record.value.n)
        ctx.post(record.timestamp_us + 5, value)
        ctx.post(record.timestamp_us, value)  # at once
        value.inner.words.append("changed after it was sent")


@pytest.mark.parametrize("cached_bytes", [0, 1 << 30])
def test_a_value_arrives_as_it_was_sent_whether_it_waited_or_not(cached_bytes: int) -> None:
    items = [Item(number % 2, number, number) for number in range(8)]
    pipeline, collected = drawn(Carries(), items)
    run_inline(pipeline, rows=2, cached_bytes=cached_bytes, processes=3)
    found = [text for step in collected.rows()["out"] for _, _, text in step]
    expected = [everything(number) for number in range(8) for _ in range(2)]
    for value in expected:
        value.ratio = float(value.ratio)
    assert sorted(found) == sorted(map(repr, expected))


def test_what_waits_is_written_once_and_costs_a_step_nothing() -> None:
    store = MemoryStore()
    items = [Item(number, number, 0) for number in range(500)] + [Item(1, 1, 1)] * 2_000

    class Far(Reminded):
        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            if record.stream == "items" and record.value.n != 1:
                ctx.post(10**6, record.value.n)

    pipeline, _ = drawn(Far(), items)
    run_until_read(pipeline, store, 2_000, rows=500, slice_every=1_000)
    lengths = []
    head = Ledger(store).open()
    assert head is not None
    for step in range(1, head.step + 1):
        manifest, _ = Ledger(store).read(step)
        lengths.append(sum(run.length for run in manifest.runs))
    assert lengths[0] > 10_000
    assert lengths[1:] == [0, 0, 0]


def test_a_record_that_is_due_as_it_comes_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: Any, rows: Any, numbered: Any) -> None:
        raise AssertionError("a record waits")

    monkeypatch.setattr(RecordBuffer, "add", add)
    items = [Item(1, n, 100 - n) for n in range(50)]

    class Echo(hr.Computation):
        out = hr.Output(int)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            ctx.produce("out", record.value.n)

    pipeline, collected = drawn(Echo(), items, delay=100, ordered=True)
    run_inline(pipeline, rows=1_000)
    assert [n for step in collected.rows()["out"] for _, _, n in step] == list(range(49, -1, -1))


# -- errors -----------------------------------------------------------------------------------


class Fussy(Reminded):
    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.stream == "later" and record.value % 2:
            ctx.produce("out", "never seen")
            ctx.post(record.timestamp_us, 2)
            ctx.post(record.timestamp_us + 100, 2)
            raise ValueError("odd")
        super().process_record(ctx, record)


class FussyInBulk(RemindedInBulk):
    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        if batch.stream == "later":
            ctx.post(batch.row_keys, batch["value"] * 0 + 2, times_us=batch.timestamps_us + 100)
            if (batch["value"] % 2).any():
                raise ValueError("odd")
            if (batch["value"] == 2).any():
                raise ValueError("what a failed call sent has arrived")
        super().process_batch(ctx, batch)


def test_a_post_whose_handler_raises_is_a_dead_letter_and_sends_nothing() -> None:
    rows = ran(Fussy(), [Item(1, 3, 0), Item(1, 4, 1)], on_error="dead_letter")
    assert rows["out"] == [(1, 11, "4")]
    ((key, time, stream, error, _, value),) = rows["dead_letter"]
    assert (key, time, stream, error, value) == (1, 10, "later", "ValueError: odd", "3")


def test_the_same_in_bulk() -> None:
    class Once(FussyInBulk):
        def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
            if batch.stream == "later" and not (batch["value"] % 2).any():
                ctx.produce("out", batch.row_keys, [str(n) for n in batch["value"]])
                return
            super().process_batch(ctx, batch)

    rows = ran(Once(), [Item(1, 3, 0), Item(1, 4, 1), Item(2, 6, 1)], on_error="dead_letter")
    assert sorted(rows["out"]) == [(1, 11, "4"), (2, 11, "6")]
    assert [row[:4] for row in rows["dead_letter"]] == [(1, 10, "later", "ValueError: odd")]


def posting(*arguments: Any, **named: Any) -> hr.Computation:
    class Posts(hr.Computation):
        one = hr.Posted(int)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            ctx.post(*arguments, **named)

    return Posts()


@pytest.mark.parametrize(
    ("computation", "message"),
    [
        (posting(4, 1), "event time never goes back"),
        (posting(6, "a"), "posted 'one' carries"),
        (posting(6, 1, stream="two"), "declares no Posted 'two'; it declares: one"),
        (posting(6, 10**30), "wants int: .* cannot be kept as int64"),
        (posting(10**9, 10**30), "posted 'one' was given a value that it cannot carry"),
        (posting(datetime(2026, 1, 1), 1), "has no time zone"),  # noqa: DTZ001
    ],
)
def test_a_post_that_cannot_be_is_refused(computation: Any, message: str) -> None:
    with pytest.raises(UserCodeError, match=message):
        ran(computation, [Item(1, 1, 5), Item(2, 1, 5), Item(3, 1, 5)])


def test_which_stream_must_be_said_where_there_are_two() -> None:
    class Two(hr.Computation):
        one = hr.Posted(int)
        two = hr.Posted(int)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            ctx.post(10, 1)

    with pytest.raises(UserCodeError, match="it declares: one, two"):
        ran(Two(), [Item(1, 1, 5)])


def test_who_declares_no_post_cannot_post() -> None:
    class Plain(hr.Computation):
        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            ctx.post(10, 1)

    with pytest.raises(UserCodeError, match="declares no Posted"):
        ran(Plain(), [Item(1, 1, 5)])


def test_a_post_in_bulk_before_its_cause_is_refused() -> None:
    class Early(hr.ColumnarComputation):
        later = hr.Posted(int)

        def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
            ctx.post(batch.row_keys, batch["n"], times_us=batch.timestamps_us - 1)

    with pytest.raises(UserCodeError, match="event time never goes back"):
        ran(Early(), [Item(1, 1, 5)])


def test_a_post_may_not_have_the_name_of_an_input() -> None:
    class Mixed(hr.Computation):
        items = hr.Posted(int)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None: ...

    with pytest.raises(PipelineError, match="reads a stream of that name"):
        drawn(Mixed(), [])


def test_what_may_wait_must_go_on_being_declared_as_it_was() -> None:
    class Renamed(hr.Computation):
        sooner = hr.Posted(int)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None: ...

    class Other(hr.Computation):
        later = hr.Posted(str)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None: ...

    store = MemoryStore()
    run_inline(drawn(Reminded(), [Item(1, 1, 1)], ordered=True)[0], store=store)
    with pytest.raises(SchemaChanged, match="posted 'later' is gone"):
        run_inline(drawn(Renamed(), [], ordered=True)[0], store=store)
    with pytest.raises(SchemaChanged, match="'later' was posted"):
        run_inline(drawn(Other(), [], ordered=True)[0], store=store)
    with pytest.raises(SchemaChanged, match="waiting 'items in order' is gone"):
        run_inline(drawn(Reminded(), [])[0], store=store)


def test_a_key_that_posts_behind_the_watermark_for_ever_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.tasks.portions.LONGEST_STALL", 100)
    monkeypatch.setattr("headrace.tasks.portions.LONGEST_STALL_IN_ROUNDS", 100)

    class Restless(hr.Computation):
        again = hr.Posted(int)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            ctx.post(record.timestamp_us, 1)

    class RestlessInBulk(hr.ColumnarComputation):
        again = hr.Posted(int)

        def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
            ctx.post(batch.keys, 1, times_us=batch.keys.times_us)

    for kind in (Restless, RestlessInBulk):
        with pytest.raises(
            UserCodeError, match=r"set (one after the other|behind the clock 100 times)"
        ):
            ran(kind(), [Item(1, 1, 1)])
