"""Results of a workload under load as plain values: for a JSON file, and as a table."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from headrace.nexmark.harness.compared import compared
from headrace.nexmark.harness.latency import Latencies, ccdf
from headrace.nexmark.harness.load import LoadTest
from headrace.nexmark.harness.observed import Observations

_SHARES = [50.0, 90.0, 99.0, 99.9, 100.0]
_NAMES = [f"p{share:g}" if share < 100 else "max" for share in _SHARES]


def report(seen: Observations, load: LoadTest) -> dict[str, Any]:
    """Return the results: latencies of each window and of every 250 ms, migrations, memory.

    Returns:
        ``load``; ``latency_ms`` (by window: ``all``, ``steady``, ``moving``); ``buckets`` (the
        start of each in seconds since events started to come, and its p50, p99 and max in
        milliseconds); ``ccdf`` (by window: latencies in milliseconds to three digits, and the share
        of events that are later); ``events`` (by window: how many); ``steps`` (of the window
        ``all``); ``answers`` (of the whole run); ``migrations``; ``memory_gib`` (when, how much).
    """
    windows = _windows(seen, load)
    return {
        "load": msgspec.to_builtins(load),
        "latency_ms": {name: _latency_ms(one) for name, one in windows.items()},
        "buckets": [
            [at, *(round(ms, 1) for ms in one.percentiles_ms([50, 99, 100]))]
            for at, one in windows["all"].buckets()
        ],
        "ccdf": {name: _ccdf(one) for name, one in windows.items()},
        "events": {name: int(one.events.sum()) for name, one in windows.items()},
        "steps": seen.steps,
        "answers": seen.answers,
        "migrations": msgspec.to_builtins(seen.moved),
        "memory_gib": [[round(at, 1), round(gib, 3)] for at, gib in seen.memory],
    }


def share_left_over(seen: Observations, load: LoadTest) -> float:
    """Return the share of measured events that was done only after events had ceased to come.

    If it is not small, the rate was too high.
    """
    first, last = load.window
    window = seen.latencies.between(first, last)
    left = window.due_us + window.late_us >= (last + load.cool_s) * 1e6
    return float(window.events[left].sum() / max(window.events.sum(), 1))


def latencies_of(facts: dict[str, Any]) -> pa.Table:
    """Return latencies as a table, from the result of :func:`report`: a row for each window."""
    rows = [
        {"window": name, "events": facts["events"][name]}
        | {f"{share} ms": ms for share, ms in late_ms.items()}
        for name, late_ms in facts["latency_ms"].items()
    ]
    return pa.Table.from_pylist(rows)


def _latency_ms(window: Latencies) -> dict[str, float]:
    """Return the percentiles of a window, by name."""
    found = zip(_NAMES, window.percentiles_ms(_SHARES), strict=True)
    return {name: round(ms, 1) for name, ms in found}


def _ccdf(window: Latencies) -> list[list[float]]:
    if not len(window.events):
        return []
    late, above = ccdf(window.histogram())
    return [[ms, round(share, 9)] for ms, share in zip(late.tolist(), above.tolist(), strict=True)]


def _windows(seen: Observations, load: LoadTest) -> dict[str, Latencies]:
    """Return the windows that have events, by name."""
    window, found = seen.latencies.between(*load.window), compared(seen, load)
    if found.moved is None:
        return {"all": window}
    named = {"all": window, "steady": found.steady, "moving": found.moving}
    return {name: one for name, one in named.items() if len(one.events)}
