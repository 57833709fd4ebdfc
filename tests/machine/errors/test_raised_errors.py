"""Whatever user code raises, wherever: it is an error with a place, and the policy for errors holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import BadInput, HeadraceError, StorageFull, UserCodeError
from headrace.errors.user_code import CALLERS, FromOutside, is_from_outside
from headrace.runners.inline import InlineRunner
from tests.support.pipelines import Elsewhere
from tests.support.records import Item


class Unsayable(Exception):
    def __str__(self) -> str:
        raise ValueError("it cannot be said")


class Bare(BaseException):
    pass


#: What is raised, and what is said of it.
RAISED: list[tuple[Callable[[], BaseException], str]] = [
    (lambda: SystemExit(0), "SystemExit: 0"),
    (lambda: SystemExit("over \x1b[31m"), r"SystemExit: over \\x1b\[31m"),
    (lambda: asyncio.CancelledError("x"), "CancelledError: x"),
    (GeneratorExit, "GeneratorExit: "),
    (KeyboardInterrupt, "KeyboardInterrupt: "),
    (lambda: Bare("b"), "Bare: b"),
    (Unsayable, r"Unsayable: \(a Unsayable, whose text cannot be made: ValueError\)"),
    (lambda: StorageFull("no room", place="/elsewhere"), "StorageFull: no room"),
    (lambda: StopIteration(5), "StopIteration: 5"),
]


ITEMS = [Item("a", n, n) for n in range(1, 5)]
Raise = Callable[[], BaseException]


class PerRecord(hr.Computation):
    kept = hr.ListState(int)
    soon = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def __init__(self, at: str, make: Raise) -> None:
        self.at, self.make = at, make

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        posted = record.stream == "mail"
        n = record.value if posted else record.value.n
        self.kept.append(n)
        if n == 3 and self.at == ("post" if posted else "record"):
            raise self.make()
        if not posted:
            self.soon.set(record.timestamp_us, tag=str(n))
            if self.at == "post":
                ctx.post(record.timestamp_us, n)
        ctx.produce("out", n)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        self.kept.append(100)
        if self.at == "timer" and timer.tag == "3":
            raise self.make()
        ctx.produce("out", 10)


class WithPosts(PerRecord):
    """The same by the visitor that has turns of event time."""

    mail = hr.Posted(int)


class Columnar(hr.ColumnarComputation):
    soon = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def __init__(self, at: str, make: Raise) -> None:
        self.at, self.make = at, make

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        if self.at == "record" and 3 in batch["n"].tolist():
            raise self.make()
        self.soon.set(batch.row_keys, batch.timestamps_us, tags=batch["n"])
        ctx.produce("out", batch.row_keys, batch["n"])

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        if self.at == "timer" and 3 in fired.tags.tolist():
            raise self.make()


def drawn(
    computation: Any = None,
    *,
    source: Any = None,
    sink: Any = None,
    on_error: Any = "stop",
    injected: Any = "stop",
    **inject: Any,
) -> hr.Pipeline:
    pipeline = hr.Pipeline("raises")
    source = source or hr.sources.Iterable(ITEMS, Item, event_time="at")
    items = pipeline.inject("items", source, on_error=injected, **inject)
    computation = computation or PerRecord("nowhere", Bare)
    node = pipeline.compute("it", computation, keys={items: "key"}, on_error=on_error)
    pipeline.sink("out", node["out"], hr.sinks.Calls(sink or (lambda delivery: None)))
    return pipeline


def told(pipeline: hr.Pipeline, folder: Path, *, concurrent: bool = False) -> UserCodeError:
    """Return what a job ends with; it must not end the thread that waits for it otherwise."""
    runner = Elsewhere() if concurrent else InlineRunner()
    with (
        pytest.raises(HeadraceError) as caught,
        hr.run(pipeline, storage=folder, runner=runner, workers=1) as job,
    ):
        job.drain("60s")
    assert isinstance(caught.value, UserCodeError), caught.value
    return caught.value


HANDLERS = [
    (WithPosts, "record", "computation 'it', key 'a', record Record"),
    (WithPosts, "post", "computation 'it', key 'a', record Record"),
    (WithPosts, "timer", "computation 'it', key 'a', timer Fired"),
    (PerRecord, "record", "computation 'it', key 'a', record Record"),
    (PerRecord, "timer", "computation 'it', key 'a', timer Fired"),
    (Columnar, "record", "computation 'it', 4 records of 1 keys of stream 'items'"),
    (Columnar, "timer", "computation 'it', timer 'soon', 4 due"),
]


CASES = [
    (*handler, *raised)
    for number, handler in enumerate(HANDLERS)
    for raised in (RAISED if number == 4 else (RAISED[0], RAISED[7]))
]


@pytest.mark.parametrize(("kind", "at", "place", "make", "says"), CASES)
def test_what_a_handler_raises_ends_the_pipeline_with_the_place(
    tmp_path: Path, kind: Any, at: str, place: str, make: Raise, says: str
) -> None:
    error = told(drawn(kind(at, make)), tmp_path)
    assert error.place.startswith(place)
    with pytest.raises(UserCodeError, match=says):
        raise error
    assert "raise self.make()" in error.traceback_text


@pytest.mark.parametrize(("kind", "at", "place", "make", "says"), CASES)
def test_what_a_handler_raises_is_skipped_if_that_is_the_policy(
    tmp_path: Path, kind: Any, at: str, place: str, make: Raise, says: str
) -> None:
    found: list[int] = []
    sink = lambda delivery: found.extend(delivery.rows.column("value").to_pylist())  # noqa: E731
    pipeline = drawn(kind(at, make), sink=sink, on_error="skip")
    with hr.run(pipeline, storage=tmp_path, runner="inline", workers=1) as job:
        job.drain("60s")
        assert job.head is not None and job.head.counts["it"].skipped == 1
    assert sorted(n for n in found if n < 10) == sorted(
        [1, 2, 4] * (2 if at == "post" else 1) + ([3] if at != "record" else [])
    )


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize(("make", "says"), RAISED[0:7:2])
def test_what_a_sink_raises_ends_the_pipeline_with_the_place_and_comes_again(
    tmp_path: Path, make: Raise, says: str, concurrent: bool
) -> None:
    def fails(delivery: hr.sinks.Delivery) -> None:
        raise make()

    error = told(drawn(sink=fails), tmp_path, concurrent=concurrent)
    assert error.place == "sink 'out', step 1"
    with pytest.raises(UserCodeError, match=says):
        raise error
    assert isinstance(error.__cause__, type(make())), "the original stays"
    again: list[Any] = []
    with hr.run(drawn(sink=again.append), storage=tmp_path, runner="inline") as job:
        job.drain("60s")
    assert sum(delivery.rows.num_rows for delivery in again) == 8


class Sourced(hr.sources.Iterable):  # type: ignore[type-arg, unused-ignore]
    """A source of one's own, which raises where it is told to."""

    at, make = "", Bare

    def _do(self, what: str) -> None:
        if self.at == what:
            raise type(self).make()

    def open(self, store: Any) -> None:
        self._do("open")
        super().open(store)

    def offer(self, *given: Any) -> Any:
        self._do("offer")
        return super().offer(*given)

    def splits(self, *given: Any) -> Any:
        self._do("splits")
        return super().splits(*given)

    def read(self, split: Any) -> Any:
        self._do("read")
        return super().read(split)

    def committed(self, position: Any) -> None:
        self._do("committed")
        super().committed(position)

    def close(self) -> None:
        self._do("close")


@pytest.mark.parametrize(("make", "says"), [RAISED[0], RAISED[6]])
@pytest.mark.parametrize("at", ["open", "offer", "splits", "read", "committed", "close"])
def test_what_a_source_raises_ends_the_pipeline_with_the_place(
    tmp_path: Path, make: Raise, says: str, at: str
) -> None:
    source = Sourced(ITEMS, Item, event_time="at")
    source.at = at
    source.__class__ = type("Own", (Sourced,), {"make": staticmethod(make)})
    error = told(drawn(source=source), tmp_path)
    assert "source Own" in error.place or error.place.startswith("injector 'items'")
    with pytest.raises(UserCodeError, match=says):
        raise error


@pytest.mark.parametrize(("make", "says"), [RAISED[0], RAISED[4], RAISED[6]])
def test_what_functions_of_a_source_raise_ends_the_pipeline_with_the_place(
    tmp_path: Path, make: Raise, says: str
) -> None:
    def items() -> Iterator[Item]:
        yield ITEMS[0]
        raise make()

    def fails(*given: Any) -> Any:
        raise make()

    source = hr.sources.Iterable(items, Item, event_time="at")
    error = told(drawn(source=source), tmp_path / "items")
    assert error.place == "injector 'items', source Iterable"
    assert error.traceback_text.count("File") == 1, "only their own line"
    watermark = hr.by_function(fails)
    error = told(drawn(watermark=watermark), tmp_path / "watermark")
    assert "watermark function" in error.place
    for number, more in enumerate(({"event_time": fails}, {"partition": fails})):
        source = hr.sources.Iterable(ITEMS, Item, **{"event_time": "at", **more})
        with (
            pytest.raises(BadInput, match="item 1"),
            hr.run(drawn(source=source), storage=tmp_path / str(number), runner="inline") as job,
        ):
            job.drain("60s")


def test_an_item_without_a_time_is_left_out_whatever_its_function_raises(tmp_path: Path) -> None:
    def time(item: Item) -> int:
        if item.n == 2:
            raise SystemExit(0)
        return item.at

    source = hr.sources.Iterable(ITEMS, Item, event_time=time)
    with hr.run(drawn(source=source, injected="skip"), storage=tmp_path, runner="inline") as job:
        job.drain("60s")
        assert job.head is not None and job.head.counts["it"].records == 3


class Codec:
    def __init__(self, fails: str, make: Raise) -> None:
        self.fails, self.make = fails, make

    def encode(self, value: int) -> bytes:
        if self.fails == "encode":
            raise self.make()
        return str(value).encode()

    def decode(self, data: bytes) -> int:
        if self.fails == "decode":
            raise self.make()
        return int(data)


@pytest.mark.parametrize("fails", ["encode", "decode"])
@pytest.mark.parametrize(("make", "says"), [RAISED[0], RAISED[6]])
def test_what_a_codec_raises_ends_the_pipeline_with_the_place(
    tmp_path: Path, make: Raise, says: str, fails: str
) -> None:
    class Keeps(hr.Computation):
        state = hr.ValueState(int, codec=Codec(fails, make))
        out = hr.Output(int)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.state.value = record.value.n

    error = told(drawn(Keeps()), tmp_path)
    assert "it" in error.place and "state" in str(error)
    with pytest.raises(UserCodeError, match=f"codec raised {says}"):
        raise error


@pytest.mark.parametrize("make", [lambda: SystemExit(0), GeneratorExit, Bare])
def test_a_listener_cannot_end_who_waits_for_the_job(tmp_path: Path, make: Raise) -> None:
    def listens(summary: hr.StepSummary) -> None:
        raise make()

    with (
        pytest.raises(UserCodeError, match=type(make()).__name__),
        hr.run(drawn(), storage=tmp_path, runner="inline", listeners=[listens]) as job,
    ):
        job.drain("60s")


def test_a_record_that_cannot_be_shown_has_a_place_all_the_same(tmp_path: Path) -> None:
    class Shy(Item):
        def __repr__(self) -> str:
            raise SystemExit(0)

    source = hr.sources.Iterable([Shy("a", 3, 1)], Shy, event_time="at")
    error = told(drawn(PerRecord("record", lambda: ValueError("x")), source=source), tmp_path)
    assert "key 'a', record (a Record, whose representation cannot be made" in error.place


def test_only_a_signal_of_the_main_thread_comes_from_outside() -> None:
    assert is_from_outside(KeyboardInterrupt())
    assert is_from_outside(FromOutside())
    assert not is_from_outside(SystemExit())
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(is_from_outside(KeyboardInterrupt())))
    thread.start()
    thread.join()
    assert found == [False]


def test_the_places_that_are_left_out_of_tracebacks_exist() -> None:
    package = Path(hr.__file__).parent
    for caller in CALLERS:
        assert (package.parent / caller.strip("/")).exists(), caller
