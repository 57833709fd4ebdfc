"""Views in tables of Delta and SQLite: after every step, the table is the view."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError
from headrace.pipeline.sink import Delivery
from headrace.testing import Harness
from headrace.zsets import Count, Sum
from tests.faults.tables.deliveries import run
from tests.property.zsets.driving import EVENTS, run_steps

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("user", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("op", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
COLUMNS = ["user", "rows", "sum"]
CHANGES = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from("abc"), st.integers(0, 3), st.booleans()),
    max_size=6,
)


def in_delta(folder: Path) -> list[Any]:
    found = DeltaTable(folder / "delta").to_pyarrow_table().to_pylist()
    return sorted(tuple(row[name] for name in COLUMNS) for row in found)


def in_sqlite(folder: Path) -> list[Any]:
    engine = sa.create_engine(f"sqlite:///{folder}/db")
    with engine.connect() as connection:
        found = connection.exec_driver_sql('SELECT user, "rows", sum FROM sums')
        return sorted(tuple(row) for row in found)


@settings(max_examples=12, deadline=None)
@given(steps=st.lists(st.tuples(CHANGES, EVENTS), min_size=1, max_size=5), again=st.booleans())
def test_a_table_holds_what_the_view_holds_after_every_step(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[list[tuple[int, str, int, bool]], str | None]],
    again: bool,
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    options: dict[str, Any] = {"mode": "upsert", "keys": ["user"], "deletes": "_deleted"}
    sinks: list[tuple[str, hr.sinks.Sink, Callable[[Path], list[Any]]]] = [
        ("delta", hr.sinks.Delta(folder / "delta", columns=COLUMNS, **options), in_delta),
        ("sqlite", hr.sinks.Table(f"sqlite:///{folder}/db", "sums", **options), in_sqlite),
    ]
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], SCHEMA, event_time="at"))
    rows = hr.zsets.table("it", stream, key="id", op="op", ignore_missing=True)
    sums = rows.group("sums", "user", rows=Count(), sum=Sum("n")).view("held", key="user")
    for name, sink, _ in sinks:
        sums.upserts_to(name, sink)
        sink.begin(run(sink=name))
    model: dict[int, tuple[str, int]] = {}
    received = dict.fromkeys(("delta", "sqlite"), 0)

    def after_step(t: Harness, number: int) -> None:
        for id_, user, n, deletes in steps[number][0]:
            model.pop(id_, None)
            if not deletes:
                model[id_] = (user, n)
        users = {user for user, _ in model.values()}
        wanted = [[n for of, n in model.values() if of == user] for user in sorted(users)]
        expected = [
            (user, len(numbers), sum(numbers))
            for user, numbers in zip(sorted(users), wanted, strict=True)
        ]
        for name, sink, found in sinks:
            made = t.deliveries(name, everything=True)
            start = max(0, received[name] - 2) if again else received[name]
            for id_, table in made[start:]:  # (some come again, as after a crash)
                sink.receive(Delivery(id_, id_, table, {}, epoch=1))
            received[name] = len(made)
            if made:
                assert found(folder) == expected

    pushes = [
        (
            {
                "in": [
                    {"id": i, "user": u, "n": n, "op": "D" if gone else "U", "at": None}
                    for i, u, n, gone in changes
                ]
            },
            event,
        )
        for changes, event in steps
    ]
    run_steps(p, pushes, after_step)


def test_a_view_without_a_key_is_refused_and_the_error_says_what_to_do() -> None:
    p = hr.Pipeline("p")
    rows = hr.zsets.table("it", p.inject("in", hr.sources.Iterable([], SCHEMA, event_time="at")))
    with pytest.raises(PipelineError, match="has no key") as refused:
        rows.select("user").view("users").upserts_to("out", hr.sinks.Calls(lambda *of: None))
    assert 'group("name", ["user"], copies=Count())' in str(refused.value)
    counted = rows.select("user").group("counted", ["user"], copies=Count())
    counted.view("users_counted", key=["user"]).upserts_to("out", hr.sinks.Calls(lambda *of: None))
