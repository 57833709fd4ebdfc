"""From outside one can tell how many records wait behind those that were read last."""

from __future__ import annotations

from pathlib import Path

import msgspec
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.driver.driver import Driver
from headrace.pipeline.source import Limit, Offer, Position
from headrace.storage import LocalStore
from tests.support.pipelines import Elsewhere


class Counting(hr.sources.Iterable):
    """Records that know how many of them wait."""

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        found = super().offer(position, limit)
        if found is None or found.empty:
            return found
        return msgspec.structs.replace(found, waiting=9 - found.end)


class Item(msgspec.Struct):
    n: int
    at: int


class Echo(hr.Computation):
    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        pass


def output(*arguments: str) -> str:
    found = CliRunner().invoke(main, [*arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return " ".join(found.stdout.split())


def test_status_and_top_say_how_many_records_wait(tmp_path: Path) -> None:
    pipeline = hr.Pipeline("waiting")
    for name, kind in (("known", Counting), ("unknown", hr.sources.Iterable)):
        records = [Item(n, n) for n in range(9)]
        stream = pipeline.inject(name, kind(records, Item, event_time="at"))
        pipeline.compute(f"{name}-echo", Echo(), keys={stream: "n"})
    driver = Driver(
        pipeline,
        LocalStore(tmp_path),
        Elsewhere(),
        workers=1,
        settings=hr.Settings(limit=Limit(2, 1 << 20)),
    )
    driver.listeners.append(lambda summary: driver.request_stop(drain=False))
    driver.run()
    driver.close()
    where = ("--storage", str(tmp_path))
    found = msgspec.json.decode(output("status", "--output", "json", *where))["injectors"]
    assert (found["known"]["waiting"], found["unknown"]["waiting"]) == (7, None)
    assert (
        "injector known: reading, highest event time 1970-01-01T00:00:00.000001Z, 2 records "
        "read, 7 waiting" in output("status", *where)
    )
    assert "injector known: 7 records wait" in output("top", "--once", *where)
