"""What the examples in docstrings may use without saying so, and how they are run.

An example finds a pipeline ``p`` with the injector ``hits`` and the computation ``visits``, and any
other stream of :data:`RECORDS` that it names. Around it are files, and the storage of a pipeline
that has ended. Whatever an example adds to ``p`` is run when the example is over, and must have
processed records. That also holds for

- a computation that it defines and does not add: it reads ``hits`` by page;
- a bare handler, such as ``process_record``: it belongs to a computation with the states, timers
  and outputs of :class:`ByKey` or :class:`ByBatch`;
- a bare method of a source: it replaces that of :class:`Numbers`;
- an injector that nothing reads: its records are counted;
- a policy, by its class or as ``policy``, and settings as ``settings``: ``p`` runs with them.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import json
import logging
import re
import textwrap
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import headrace as hr
from headrace.computation.computation import UserCode
from headrace.control.control import Control
from headrace.errors import HeadraceError
from headrace.schema import value_type_of
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.sources.inbox import Producer
from headrace.storage import open_store
from headrace.storage.memory import MemoryStore

SECOND = 1_000_000
#: Where examples find Kafka.
KAFKA = "localhost:9092"


class Hit(msgspec.Struct):
    page: str
    user: str
    ms: int
    at: int


class Bid(msgspec.Struct):
    auction: int
    bidder: int
    price: int
    cents: int
    at: int


class Person(msgspec.Struct):
    id: int
    name: str
    at: int


class Event(msgspec.Struct):
    user: str
    last: bool
    at: int


class Order(msgspec.Struct):
    id: str
    order: str
    shop: str
    at: int


class Payment(msgspec.Struct):
    order: str
    currency: str
    cents: int
    at: int


class Commit(msgspec.Struct):
    id: str
    orders: int
    payments: int
    at: int


class Rate(msgspec.Struct):
    currency: str
    rate: float
    at: int


class Trip(msgspec.Struct):
    car: str
    km: float
    at: int


class Reading(msgspec.Struct):
    sensor: str
    celsius: float
    at: int


class Load(msgspec.Struct):
    host: str
    load: float
    at: int


class Line(msgspec.Struct):
    file: str
    text: str
    at: int


#: The records of each stream.
RECORDS: dict[str, list[Any]] = {
    "hits": [Hit(f"/{n % 3}", f"user-{n % 4}", 50 + 7 * n, n * SECOND) for n in range(40)],
    "bids": [Bid(n % 2, n % 3, 10 * n, 1_000 * n, n * SECOND) for n in range(20)],
    "people": [Person(n, f"person-{n}", 0) for n in range(3)],
    "events": [Event("ann", n == 4, n * SECOND) for n in range(6)],
    "orders": [Order(f"o{n}", f"o{n}", "berlin", n * SECOND) for n in range(4)],
    "payments": [Payment("o1", "EUR", 500, 9 * SECOND), Payment("o2", "CHF", 70, 9 * SECOND)],
    "commits": [Commit(f"o{n}", 1, 1, 9 * SECOND) for n in (1, 2, 3)],
    "rates": [Rate("EUR", 1.0, 0), Rate("CHF", 1.07, 0)],
    "trips": [Trip("red", 10.0 + n, n * SECOND) for n in range(5)],
    "readings": [Reading("roof", 20.5 + n, n * SECOND) for n in range(5)],
    "hosts": [Load("web-1", n / 10, n * SECOND) for n in range(5)],
    "lines": [Line("notes.txt", "a line of words", n * SECOND) for n in range(3)],
}


class Visits(hr.Computation):
    """Counts the hits of a page, until it is idle for ten minutes."""

    count = hr.ValueState(int, default=0)
    idle = hr.Timer(hr.EVENT_TIME)
    totals = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record[Hit]) -> None:
        self.count.value += 1
        self.idle.set(record.timestamp + timedelta(minutes=10))
        ctx.produce("totals", self.count.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        self.count.clear()


class Count(StatefulProcessor):  # type: ignore[misc]
    """Counts the rows of a key, as one does in PySpark."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N803
        before = self.count.get()
        total = (before[0] if before else 0) + len(list(rows))
        self.count.update((total,))
        yield Row(word=key[0], count=total)


class CountFrames(Count):
    """Does the same with DataFrames of pandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N803
        import pandas as pd

        for row in super().handleInputRows(key, [row for f in rows for row in f.index], None):
            yield pd.DataFrame([row.asDict()])


class ByKey(hr.Computation):
    """What a bare handler of records or of a timer finds."""

    first = hr.ValueState(datetime)
    last = hr.ValueState(datetime)
    recent = hr.ListState(str)
    counts = hr.MapState(str, int)
    idle = hr.Timer(hr.EVENT_TIME)
    hour_over = hr.Timer(hr.EVENT_TIME)
    pages = hr.Output(str)
    corrections = hr.Output(Hit)
    samples = hr.Output(Hit)
    hours = hr.Output(datetime)

    def process_record(self, ctx: hr.Context, record: hr.Record[Hit]) -> None:
        self.hour_over.set(record.timestamp + timedelta(hours=1))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        assert timer.name == "idle"


class ByBatch(hr.ColumnarComputation):
    """What a bare handler of batches or of many timers finds."""

    counts = hr.TableState({"visits": int})
    over = hr.Timer(hr.EVENT_TIME)
    slowest = hr.Output(int)
    new = hr.Output(int)
    seen = hr.Output(msgspec.defstruct("Seen", [("page", str)]))

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        self.counts.at(batch.keys).upsert(visits=batch.counts)
        self.over.set(batch.keys, 3_600 * SECOND)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        raise AssertionError("nothing sets a timer beside the example that handles it")


class Numbers(hr.sources.Source):
    """What a bare method of a source finds: a hundred numbers."""

    bounded: ClassVar[bool] = True

    def available(self) -> int:
        return 100

    def values(self) -> Any:
        return value_type_of(int)

    def start(self) -> int:
        return 0

    def offer(self, position: Any, limit: hr.Limit) -> hr.sources.Offer | None:
        end = min(self.available(), position + limit.rows)
        return hr.sources.Offer(end, end - position, 8 * (end - position), final=end == 100)

    def splits(self, start: Any, end: Any) -> list[hr.sources.Split]:
        return [hr.sources.Split([start, end])]

    def read(self, split: hr.sources.Split) -> pa.Table:
        numbers = np.arange(*split.spec)
        return pa.table({TIMESTAMP_COLUMN: numbers * SECOND, "value": numbers})


#: Names that examples use without importing them.
NAMES: dict[str, Any] = {
    **{kind.__name__: kind for kind in (Hit, Bid, Order, Payment, Visits, Count, CountFrames)},
    "hr": hr,
    "np": np,
    "pa": pa,
    "json": json,
    "Path": Path,
    "date": date,
    "datetime": datetime,
    "timedelta": timedelta,
    "UTC": UTC,
    "Control": Control,
    "value_type_of": value_type_of,
    "open_store": open_store,
    "Producer": Producer,
    "HeadraceError": HeadraceError,
    "TIMESTAMP_COLUMN": TIMESTAMP_COLUMN,
}


def programs_of(thing: Any) -> str:
    """Return the blocks of Python in a docstring, as one program; empty if there is none."""
    lines = [*(inspect.getdoc(thing) or "").splitlines(), ""]
    found: list[str] = []
    at = 0
    while at < len(lines):
        introduced = lines[at].rstrip().endswith("::") and not lines[at].lstrip().startswith("..")
        at += 1
        if introduced:
            indent = len(lines[at - 1]) - len(lines[at - 1].lstrip())
            start = at
            while at < len(lines) and (
                not lines[at].strip() or len(lines[at]) - len(lines[at].lstrip()) > indent
            ):
                at += 1
            found.append(textwrap.dedent("\n".join(lines[start:at])))
    return "\n".join(found)


def dialogues_of(thing: Any, name: str) -> list[doctest.Example]:
    """Return the lines after ``>>>`` in a docstring, with their answers."""
    return doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "", name)


def needs_spark(code: str) -> bool:
    """Return whether an example needs a session, or one of PySpark's interfaces."""
    return bool({"spark", "DataSource"} & _names(code))


def needs_kafka(code: str) -> bool:
    """Return whether an example needs a broker."""
    return KAFKA in code


def _names(code: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def run_example(thing: Any, name: str, *, spark: Any = None, kafka: Any = None) -> None:
    """Run what a docstring shows, in the present directory.

    Args:
        thing: what has the docstring.
        name: its name.
        spark: a session, for an example that needs one.
        kafka: a Kafka, for an example that needs one.

    Raises:
        AssertionError: if an answer differs, or a computation has processed nothing.
    """
    with _handlers_of_now():
        _run_code(thing, name, spark, kafka)


@contextlib.contextmanager
def _handlers_of_now() -> Iterator[None]:
    """Remove the handlers of the log that are added in the block."""
    log = logging.getLogger("headrace")
    before = list(log.handlers)
    try:
        yield
    finally:
        log.handlers[:] = before


def _run_code(thing: Any, name: str, spark: Any, kafka: Any) -> None:
    code = programs_of(thing)
    if spark is not None:  # its processes have a working directory of their own
        code = re.sub(r'"((?:logs|state)/[^"]*)"', lambda path: f'"{Path.cwd() / path[1]}"', code)
    if kafka is not None:
        _make_topics(kafka)
        code = code.replace(KAFKA, kafka.bootstrap)
    module: ModuleType | None = inspect.getmodule(thing)
    namespace = {**NAMES, **(vars(module) if module else {}), "hr": hr, "spark": spark}
    _make_files(code)
    _add_pipeline(code, namespace)
    before = dict(namespace)
    exec(compile(code, name, "exec", dont_inherit=True), namespace)
    answers = doctest.DocTest(dialogues_of(thing, name), namespace, name, None, None, None)
    said: list[str] = []
    failed = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
        answers, out=said.append, clear_globs=False
    )
    assert not failed.failed, "".join(said)
    made = {key: item for key, item in namespace.items() if before.get(key) is not item}
    _complete(namespace, made)
    _run(namespace)


def _make_topics(kafka: Any) -> None:
    """Make a topic of hits, and an empty one for totals, unless another example has."""
    from tests.support.kafka import write

    there = kafka.admin().list_topics(timeout=60).topics
    if "totals" not in there:
        kafka.create_topic("totals", cleanup_policy="compact")
        kafka.create_topic("hits")
        hits = [(hit.page.encode(), msgspec.json.encode(hit)) for hit in RECORDS["hits"]]
        write(kafka, "hits", hits)


def _make_files(code: str) -> None:
    """Write files of hits and, if the example looks into it, the storage of a pipeline."""
    lines = [msgspec.json.encode(hit).decode() + "\n" for hit in RECORDS["hits"]]
    Path("logs").mkdir()
    Path("logs/monday.jsonl").write_text("".join(lines[:20]))
    Path("logs/tuesday.jsonl").write_text("".join(lines[20:]))
    torn = '{"page": "/to' if "dead_letter" in code else ""
    Path("hits.jsonl").write_text("".join([*lines, torn]))
    if "sources.Inbox(" in code:
        _pushed("inbox", RECORDS["hits"]).finish()
    if "state/visits" in code:
        visits = [Hit("/home", "ann", 12, n * SECOND) for n in range(3)]
        p = hr.Pipeline("visits")
        hits = p.inject("hits", hr.sources.Iterable(visits, Hit, event_time="at"))
        p.compute("visits", Visits(), keys={hits: "page"})
        with hr.run(p, storage="state/visits", runner="inline") as job:
            job.catch_up()


def _add_pipeline(code: str, namespace: dict[str, Any]) -> None:
    p = hr.Pipeline("example")
    for name in RECORDS:
        if name == "hits" or name in _names(code):
            namespace[name] = p.inject(name, _source(name, code))
    if not re.search(r'compute\(\s*"visits"', code):
        namespace["visits"] = p.compute("visits", Visits(), keys={namespace["hits"]: "page"})
    namespace["p"] = p
    if "t" in _names(code):
        namespace["t"] = hr.testing.drive(p, workers=2)


def _pushed(inbox: str, records: list[Any]) -> Producer:
    """Append records to an inbox."""
    producer = Producer(inbox, "web-1", type=type(records[0]), event_time="at")
    producer.append(records)
    return producer


def _source(name: str, code: str) -> hr.sources.Source:
    """Return a source of a stream's records, which has no end where a run is asked for a change."""
    records = RECORDS[name]
    if "sinks.Kafka(" in code:  # Kafka has no messages of 1970-01-01T00:00:00Z
        records = [msgspec.structs.replace(one, at=one.at + SECOND) for one in records]
    if "job.change(" not in code:
        return hr.sources.Iterable(records, type(records[0]), event_time="at")
    _pushed(f"inbox-{name}", records)
    return hr.sources.Inbox(f"inbox-{name}", type(records[0]), event_time="at")


def _complete(namespace: dict[str, Any], made: dict[str, Any]) -> None:
    """Add to the pipeline what the example defines and does not add itself."""
    p, hits = namespace["p"], namespace["hits"]
    added = {type(node.computation) for node in p.nodes.values()}
    functions = {key: item for key, item in made.items() if isinstance(item, FunctionType)}
    classes = [item for item in made.values() if isinstance(item, type)]
    classes += [
        type("Example", (base,), {key: functions[key] for key in handlers & set(functions)})
        for base, handlers in (
            (ByKey, {"process_record", "process_timer"}),
            (ByBatch, {"process_batch", "process_timers"}),
        )
        if handlers & set(functions)
    ]
    for number, item in enumerate(classes):
        if issubclass(item, UserCode) and item not in added:
            p.compute(f"example{number}", item(), keys={hits: "page"})
        elif hasattr(item, "decide"):
            namespace.setdefault("policy", item())
    methods = {key: functions[key] for key in {"offer", "splits"} & set(functions)}
    if methods:
        ends = {"bounded": "offer" not in methods}
        p.inject("numbers", type("Source", (Numbers,), {**methods, **ends})())
    for name in [name for name in p.injectors if not p.readers_of(name)]:
        stream = p.injectors[name].stream
        key = stream.values.schema.names[0]
        p.compute(f"{name}-read", hr.ops.Running(count=hr.ops.Count()), keys={stream: key})


def _run(namespace: dict[str, Any]) -> None:
    """Run the pipeline as the example has left it, and check that each computation has worked.

    What the example has run itself is not run again: its sinks belong to that run's storage.
    """
    p: hr.Pipeline = namespace["p"]
    own = namespace.get("job")
    ends = all(injector.source.bounded for injector in p.injectors.values())
    if isinstance(own, hr.Job) and own.pipeline.name == p.name and own.ended:
        if ends:
            _check_has_worked(own.pipeline, own)
            return
        p = own.pipeline  # it was stopped wherever it was
    named = {key: namespace[key] for key in ("settings", "policy") if key in namespace}
    with hr.run(p, storage=MemoryStore(), runner="inline", **named) as job:
        if ends:
            job.drain()
        else:
            job.catch_up()
    _check_has_worked(p, job)


def _check_has_worked(p: hr.Pipeline, job: hr.Job) -> None:
    assert job.head is not None
    for name in p.nodes:
        assert job.head.counts[name].records, f"{name} has processed nothing"
