"""How long 50,000 changes take through a join and an aggregate of Z-sets, in this process.

Run ``python -m benchmarks.zsets``. A table of 10,000 customers stands. Then orders come in steps of
50,000 rows, of which a tenth delete orders of before. They are joined with their customers, and
summed up by region.
"""

from __future__ import annotations

import time
from decimal import Decimal

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.zsets import Count, Sum

ORDERS = pa.schema(
    [
        pa.field("customer", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(12, 2), nullable=False),
        pa.field("_weight", pa.int64(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
CUSTOMERS = pa.schema(
    [
        pa.field("customer", pa.int64(), nullable=False),
        pa.field("region", pa.int64(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
PEOPLE, CHANGES, STEPS = 10_000, 50_000, 8


def pipeline() -> hr.Pipeline:
    """Return the pipeline that is measured."""
    p = hr.Pipeline("bench")
    orders = hr.zsets.table("orders", p.inject("orders", _no_records(ORDERS)))
    people = hr.zsets.table("people", p.inject("people", _no_records(CUSTOMERS)))
    joined = orders.select("customer", "price").join(
        "joined", people.select("customer", "region"), "customer"
    )
    joined.group("sums", "region", n=Count(), price=Sum("price"))
    return p


def _no_records(schema: pa.Schema) -> hr.sources.Source:
    return hr.sources.Iterable([], schema, event_time="at")


def main() -> None:
    """Print how long the user code of each step takes."""
    random = np.random.default_rng(1)
    with hr.testing.drive(pipeline(), workers=1, timer=time.perf_counter) as t:
        people = [{"customer": n, "region": n % 25, "at": None} for n in range(PEOPLE)]
        t.push_many("people", people, at=[0] * PEOPLE)
        t.run()
        for number in range(STEPS):
            _step(t, random, number)


def _step(t: hr.testing.Harness, random: np.random.Generator, number: int) -> None:
    customers = random.integers(0, PEOPLE, CHANGES).tolist()
    cents = random.integers(1, 10**6, CHANGES).tolist()
    weights = np.where(random.random(CHANGES) < 0.1, -1, 1).tolist()
    rows = [
        {"customer": c, "price": Decimal(p) / 100, "_weight": w, "at": None}
        for c, p, w in zip(customers, cents, weights, strict=True)
    ]
    t.push_many("orders", rows, at=[0] * CHANGES)
    begun = time.perf_counter()
    summary = t.step()
    took = time.perf_counter() - begun
    assert summary is not None
    print(f"step {number}: {took * 1e3:.0f} ms, all told; user code {_user_ms(summary):.0f} ms")


def _user_ms(summary: hr.StepSummary) -> float:
    phases = getattr(summary, "phases", {})
    return 1e3 * float(phases.get("user code", 0.0))


if __name__ == "__main__":
    main()
