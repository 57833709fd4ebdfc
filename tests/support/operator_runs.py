"""Runs an operator on records with disorder, with any steps, workers and crashes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from hypothesis import strategies as st

import headrace as hr
from headrace.driver.driver import Driver
from headrace.errors import StepAbandoned
from headrace.eventtime.timestamps import MIN_TIME, to_micros
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.property.steps.test_equivalence import FAULTS, Crashing
from tests.support.durations import us
from tests.support.pipelines import Collected, run_inline

#: How much later than others a record may come, and still be on time.
DISORDER = 40


class Item(msgspec.Struct, frozen=True):
    key: str
    at: int
    x: int | None = None
    f: float | None = None
    s: str | None = None
    n: int = 0


class Row(msgspec.Struct, frozen=True):
    """A production: its key, event time and values; times are microseconds."""

    key: Any
    at: int
    values: tuple[Any, ...]


def on_time(records: list[tuple[Any, ...]]) -> list[Item]:
    """Return items of (key, x, jitter, …) that come in disorder, but none of them late."""
    items = []
    for number, (key, x, jitter, *more) in enumerate(records):
        text = None if x is None else f"t{x % 7}"
        value = None if x is None else x / 4
        items.append(Item(key, number * 3 + jitter, x, value, text, *more or [number]))
    return items


KEYS = st.sampled_from(["a", "a", "a", "b", "é", ""])


def few_or_many(record: Any, most: int = 40) -> Any:
    """Return lists of records: left alone, Hypothesis seldom makes more than a handful."""
    return st.one_of(
        st.lists(record, max_size=8), st.lists(record, min_size=most // 2, max_size=most)
    )


RECORD = st.tuples(KEYS, st.one_of(st.none(), st.integers(-20, 20)), st.integers(0, DISORDER))
RECORDS = few_or_many(RECORD)
ITEMS = RECORDS.map(on_time)
WAYS = st.fixed_dictionaries(
    {
        "rows": st.sampled_from([1, 7, 7, 100]),
        "workers": st.sampled_from([1, 2, 4]),
        "cached_bytes": st.sampled_from([512, 1 << 30]),
    }
)


def run(
    operator: Callable[[], Any],
    *inputs: list[Any],
    key: str = "key",
    delay: int = DISORDER,
    faults: list[str] | None = None,
    late: Any = None,
    types: tuple[type, ...] = (Item, Item),
    **way: Any,
) -> tuple[list[list[Row]], Driver]:
    """Run an operator; return what each step produced, and the driver.

    Args:
        operator: makes it, or is a function (pipeline, streams) that draws it.
        inputs: the items of each stream.
        types: their types.
        faults: what befalls the tries; after a crash another driver goes on.
    """
    collected, store = Collected(), MemoryStore()
    faults = list(faults or [])

    def drawn() -> hr.Pipeline:
        pipeline = hr.Pipeline("test")
        streams = [
            pipeline.inject(
                f"in{number}",
                hr.sources.Iterable(items, types[number], event_time="at"),
                watermark=hr.bounded_delay(us(delay)),
            )
            for number, items in enumerate(inputs)
        ]
        made = operator()
        if isinstance(made, hr.ColumnarComputation):
            node = pipeline.compute("it", made, keys=dict.fromkeys(streams, key), late=late)
        else:
            node = made(pipeline, *streams)
        pipeline.sink("out", node["out"], collected.sink("out"))
        return pipeline

    while True:
        runner = Crashing(InlineRunner(3, processes=2), faults)
        try:
            driver = run_inline(drawn(), store=store, runner=runner, **way)
            break
        except (Crashing.Crash, StepAbandoned):
            continue
    steps = collected.rows().get("out", [])
    return [[Row(k, at, tuple(map(plain, values))) for k, at, *values in s] for s in steps], driver


def plain(value: Any) -> Any:
    return to_micros(value) if isinstance(value, datetime) else value


def rows_of(steps: list[list[Row]]) -> list[Row]:
    """Return all productions, in an order of no meaning."""
    return sorted((row for step in steps for row in step), key=repr)


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def last_of_each(steps: list[list[Row]]) -> dict[Any, tuple[Any, ...]]:
    """Return the values of each key's last production."""
    return {row.key: row.values for step in steps for row in step}


def watermarks(items: list[Any], rows: int, delay: int) -> list[int]:
    """Return for each item of a single stream the watermark before its step."""
    found, highest = [], MIN_TIME
    for first in range(0, len(items), rows):
        step = items[first : first + rows]
        found += [MIN_TIME if highest == MIN_TIME else highest - delay] * len(step)
        highest = max([highest, *(item.at for item in step)])
    return found


def late_count(driver: Driver, name: str = "it") -> int:
    assert driver.coordinator.head is not None
    return (
        driver.coordinator.head.counts[name].late if name in driver.coordinator.head.counts else 0
    )


__all__ = [
    "DISORDER",
    "FAULTS",
    "ITEMS",
    "KEYS",
    "RECORD",
    "WAYS",
    "Item",
    "Row",
    "few_or_many",
    "last_of_each",
    "late_count",
    "on_time",
    "ordered",
    "rows_of",
    "run",
    "watermarks",
]
