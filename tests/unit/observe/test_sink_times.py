"""How long a sink takes for the results of a step is recorded, shown, and said where it is slow."""

from __future__ import annotations

import msgspec
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.driver.driver import Clock, Driver
from headrace.driver.phase_timer import Stopwatch
from headrace.ledger.ledger import Ledger
from headrace.observe.alerts import alerts_of
from headrace.observe.observer import PipelineObserver
from headrace.pipeline.source import Limit
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.machine.steps.test_soft_state import Count, Item, drawn

ITEMS = [Item("abcd"[i % 4], i, i) for i in range(60)]


class Hours(Clock):
    """Time that passes only as a test says."""

    seconds = 1e6

    def timer(self) -> float:
        return self.seconds

    def now_us(self) -> int:
        return round(self.seconds * 1e6)


def run(takes_s: float, store: MemoryStore) -> None:
    """Run a pipeline with two sinks, of which one takes time for each step."""
    hours = Hours()

    def receive(step: int, rows: object) -> None:
        hours.seconds += takes_s

    pipeline, _ = drawn(Count(), ITEMS)
    stream = next(iter(pipeline.sinks.values())).stream
    pipeline.sink("slow", stream, hr.sinks.Calls(receive, idempotent=True))
    driver = Driver(
        pipeline,
        store,
        InlineRunner(timer=hours.timer),
        drain=True,
        clock=hours,
        settings=hr.Settings(limit=Limit(7, 1 << 20)),
        stopwatch=Stopwatch(hours.timer),
    )
    driver.run()
    driver.close()


def test_manifests_say_how_long_each_slow_sink_took() -> None:
    run(0.25, store := MemoryStore())
    steps = [one for one in Ledger(store).newest(100) if one.counts]
    assert len(steps) == 9
    first, *others = [one.timing for one in steps]
    assert first is not None and first.sinks_us == {}, "what it takes is in the next step"
    for timing in others:
        assert timing is not None
        assert timing.sinks_us == {"slow": 250_000}
        assert timing.deliver_us == 250_000
        assert "deliver slow" not in timing.driver_us


def test_what_takes_next_to_nothing_is_left_out() -> None:
    run(0.0005, store := MemoryStore())
    timings = [one.timing for one in Ledger(store).newest(100) if one.timing is not None]
    assert all(timing.sinks_us == {} for timing in timings)


def test_a_slow_sink_is_shown_with_how_long_it_takes_and_is_an_alert() -> None:
    run(0.25, store := MemoryStore.named("sink-times"))
    picture = PipelineObserver(store).look(round(2e12))
    assert picture is not None
    slow, other = picture.sinks["slow"], picture.sinks["out"]
    assert slow.takes_ms == 250
    assert slow.busy is not None and slow.busy > 0.99, "no time passes in this test but in the sink"
    assert (other.takes_ms, other.busy) == (None, 0)
    found = [alert for alert in alerts_of(picture, {}) if alert.subject == "sink:slow"]
    assert [alert.text for alert in found] == ["Sink slow is busy 100% of the time"]
    assert "it takes 250 ms for the results of a step" in found[0].why
    top = CliRunner().invoke(
        main, ["top", "--storage", "memory:sink-times", "--output", "json", "--steps", "4"]
    )
    assert msgspec.json.decode(top.stdout)["sinks_ms"]["slow"] > 100
    text = CliRunner().invoke(main, ["top", "--once", "--storage", "memory:sink-times"]).stdout
    assert "slow" in " ".join(text.split()).partition("sinks take")[2][:60]
