"""Views that are kept up to date in a pipeline, beside what their queries give over whole tables."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.sql.catalyst import Catalyst
from headrace.sql.stored import PlannedView
from headrace.sql.views import Views
from headrace.testing import Harness

Row = tuple[Any, ...]
#: For each table, the rows that come and those that go in a step.
Changes = Mapping[str, tuple[Sequence[Row], Sequence[Row]]]


def pipeline_of(
    catalyst: Catalyst,
    schemas: Mapping[str, pa.Schema],
    queries: Mapping[str, str],
    *,
    keeps_rows: bool = False,
    planned: Mapping[str, PlannedView] | None = None,
) -> tuple[hr.Pipeline, Views]:
    """Return a pipeline with a view for each query. What it produces has the name of the view.

    Args:
        catalyst: plans the queries.
        schemas: the columns of the tables.
        queries: by the name of the view.
        keeps_rows: whether the tables keep their rows, so that views can be added later.
        planned: views that were planned before.
    """
    p = hr.Pipeline("p")
    views = Views(planner=catalyst, planned=planned)
    for name, schema in schemas.items():
        weight = pa.field("_weight", pa.int64(), nullable=False)
        stream = pa.schema([*schema, weight, ("at", pa.timestamp("us", "UTC"))])
        source = hr.sources.Iterable([], stream, event_time="at")
        table = hr.zsets.table(name, p.inject(f"{name}_in", source)).select(*schema.names)
        table.compute(f"all_of_{name}")  # (an injector must be read)
        views.table(name, table.checked(f"{name}_rows") if keeps_rows else table)
    for name, sql in queries.items():
        views.view(name, sql).compute(name)
    return p, views


def push(t: Harness, schemas: Mapping[str, pa.Schema], changes: Changes, number: int) -> bool:
    """Push the changes of a step, and return whether there are any."""
    pushed = False
    for name, (added, removed) in changes.items():
        names = schemas[name].names
        records = [
            {**dict(zip(names, row, strict=True)), "_weight": weight, "at": None}
            for rows, weight in ((added, 1), (removed, -1))
            for row in rows
        ]
        if records:
            t.push_many(f"{name}_in", records, at=[number * 1_000_000] * len(records))
            pushed = True
    return pushed


def produced(t: Harness, view: str) -> Counter[Row]:
    """Return what a step has changed of a view: each row with its weight."""
    found: Counter[Row] = Counter()
    for one in t.outputs(view):
        *values, _ = (getattr(one.value, name) for name in one.value.__struct_fields__)
        found[tuple(map(_plain, values))] += one.value._weight
    return found


def _plain(value: Any) -> Any:
    """Return a value of which there is one: NaN equals itself only if it is the same object."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value + 0.0
    return value


def random_changes(
    r: random.Random, rows: Mapping[str, Callable[[], Row]], steps: int
) -> Iterator[tuple[Changes, dict[str, list[Row]]]]:
    """Draw the changes of some steps, and what the tables hold after each.

    The last step but one has no change, and in the last one everything goes.
    """
    there: dict[str, list[Row]] = {name: [] for name in rows}
    for number in range(steps + 2):
        changes: dict[str, tuple[list[Row], list[Row]]] = {}
        for name, draw in rows.items():
            held = there[name]
            if number >= steps:
                removed = list(held) if number > steps else []
                changes[name] = ([], removed)
            else:
                removed = [held[at] for at in range(len(held)) if r.random() < 0.3]
                changes[name] = ([draw() for _ in range(r.randint(0, 5))], removed)
            left = Counter(map(repr, removed))
            kept = []
            for row in held:
                left[repr(row)] -= 1
                if left[repr(row)] < 0:
                    kept.append(row)
            there[name] = kept + list(changes[name][0])
        yield changes, {name: list(held) for name, held in there.items()}
