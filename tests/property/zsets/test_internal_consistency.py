"""Transfers between accounts: whatever is asked at whatever step, no money appears or is lost.

Debits and credits are summed apart, joined to balances, and added up. The total is 0 after every
step, since a step takes all views from one state of the input to the next.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.testing import Harness
from headrace.zsets import Rows, Sum
from tests.property.zsets.driving import EVENTS, run_steps

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("source", pa.int32(), nullable=False),
        pa.field("target", pa.int32(), nullable=False),
        pa.field("cents", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)


def _account(rows: Rows) -> Any:
    return np.where(rows.nulls("account"), rows["other"], rows["account"])


def _difference(rows: Rows) -> Any:  # (a null reads as zero)
    return rows["credit"] - rows["debit"]


def pipeline(source: hr.sources.Source, *, key: str | None, op: str | None) -> hr.Pipeline:
    p = hr.Pipeline("bank")
    transfers = hr.zsets.table("transfers", p.inject("in", source), key=key, op=op)
    debits = transfers.select(account="source", cents="cents").group(
        "debits", "account", debit=Sum("cents")
    )
    credits = transfers.select(account="target", cents="cents").group(
        "credits", "account", credit=Sum("cents")
    )
    both = debits.join("both", credits, "account", "full", right_names={"account": "other"})
    amount = pa.field("", pa.int64(), nullable=False)
    balances = both.select(
        account=_account,
        balance=_difference,
        types={"account": pa.field("", pa.int32(), nullable=False), "balance": amount},
    )
    balances.view("balances", key="account")
    total = balances.group("whole", (), total=Sum("balance"))
    total.view("total")
    return p


TRANSFERS = st.lists(
    st.tuples(
        st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.booleans()
    ),
    max_size=6,
)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(TRANSFERS, EVENTS), min_size=1, max_size=6), st.integers(1, 3))
def test_the_total_is_zero_after_every_step_while_transfers_come_change_and_go(
    steps: list[tuple[list[tuple[int, int, int, int, bool]], str | None]], workers: int
) -> None:
    schema = SCHEMA.append(pa.field("op", pa.string()))
    built = pipeline(hr.sources.Iterable([], schema, event_time="at"), key="id", op="op")
    there: dict[int, tuple[int, int, int]] = {}
    expected: list[Counter[int]] = []
    pushes = []
    for transfers, event in steps:
        rows = []
        for id_, source, target, cents, deletes in transfers:
            if deletes and id_ not in there:
                continue
            there.pop(id_, None)
            if not deletes:
                there[id_] = (source, target, cents)
            row = {"id": id_, "source": source, "target": target, "cents": cents, "at": None}
            rows.append({**row, "op": "D" if deletes else "U"})
        balances: Counter[int] = Counter()
        for source, target, cents in there.values():
            balances[source] -= cents
            balances[target] += cents
        expected.append(balances)
        pushes.append(({"in": rows}, event))
    assert _checked(built, pushes, expected, workers) == len(steps)


def _checked(
    built: hr.Pipeline, pushes: list[Any], expected: list[Counter[int]], workers: int
) -> int:
    seen = 0
    totals: Counter[int | None] = Counter()
    balances: Counter[tuple[int, int]] = Counter()

    def after_step(t: Harness, number: int) -> None:
        nonlocal seen
        seen += 1
        for made in t.outputs("total"):
            totals[made.value.total] += made.value._weight
        for made in t.outputs("balances"):
            balances[made.value.account, made.value.balance] += made.value._weight
        # (there is no sum before the first transfer, and the sum of no balances is NULL)
        allowed = [[0]] if expected[number] else [[], [None]]
        assert [total for total, weight in totals.items() if weight] in allowed
        assert +balances == Counter(expected[number].items())
        assert not -balances

    run_steps(built, pushes, after_step, workers=workers)
    return seen


@pytest.mark.parametrize("transfers", [100_000, pytest.param(10_000_000, marks=pytest.mark.soak)])
def test_the_total_of_many_transfers_is_zero_at_every_step(tmp_path: Path, transfers: int) -> None:
    rng = np.random.default_rng(7)
    print("seed 7")
    files, size = 10, transfers // 10
    (tmp_path / "in").mkdir()
    for number in range(files):
        at = np.arange(number * size, (number + 1) * size)
        columns = [
            at,
            rng.integers(0, 1000, size, dtype=np.int32),
            rng.integers(0, 1000, size, dtype=np.int32),
            rng.integers(1, 10_000, size),
            at * 1000,
        ]
        pq.write_table(pa.table(columns, schema=SCHEMA), tmp_path / "in" / f"{number:02}.parquet")
    source = hr.sources.Files(tmp_path / "in" / "*.parquet", event_time="at", schema=SCHEMA)
    p = pipeline(source, key=None, op=None)
    wrong: list[Any] = []
    steps: list[int] = []

    def received(step: int, rows: pa.Table) -> None:
        steps.append(step)
        total = np.dot(rows.column("total").to_numpy(), rows.column("_weight").to_numpy())
        if total != 0 or set(rows.column("total").to_pylist()) - {0}:
            wrong.append((step, rows.to_pylist()))

    changes = p.nodes["total"]["out"]
    p.sink("totals", changes, hr.sinks.Calls(received))
    limit = hr.Limit(max(5_000, transfers // 200), 64 << 20)
    with hr.run(
        p, storage="memory:bank", runner="inline", settings=hr.Settings(limit=limit)
    ) as job:
        job.drain()
        done = job.head.counts["debits"].records
        last = job.head.step
    assert done == transfers
    assert not wrong
    assert last >= 15
    final = read_view(hr.open_state("memory:bank"), "total").to_pylist()
    assert final == [{"total": 0}]
    balances = read_view(hr.open_state("memory:bank"), "balances")
    assert balances.num_rows == 1000
    assert sum(balances.column("balance").to_pylist()) == 0
