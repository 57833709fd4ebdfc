"""What bins cost: a running count with 2^4 to 2^20 bins, and with a single one.

For each number of bins it gives records/s at steps of ``--rows`` records, and the percentiles of a
step's time that are in Megaphone's table. That table's p99, of another machine and engine, stands
beside them. All cases run in one session that was warmed up. Each number of bins has a storage of
its own. They take turns, in an order that changes. The first figure compares 2^12 with 2^4.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.count import headrace
from benchmarks.harness import figure, local_session, parser, percentile, report
from benchmarks.inputs import write_input

#: bits → the minimum share of the throughput at 2^4
GOALS = {12: 0.97, 16: 0.90, 20: 0.50}


#: bits → the p99 in Megaphone's table
MEGAPHONE_P99_MS = {4: 7.6, 12: 7.1, 16: 27.0, 20: 1_409.0}
PERCENTILES = (50, 90, 99, 100)


def run(
    context: Any, data: Path, folder: Path, bits: int, chosen: argparse.Namespace
) -> list[float]:
    """Count with 2^``bits`` bins; return the seconds of each step."""
    way = argparse.Namespace(
        emit="none", rows=chosen.rows, exchange="auto", workers=2, bins=1 << bits, warm=chosen.warm
    )
    folder.mkdir()
    seconds, _, _ = headrace(context, data, folder, way)
    shutil.rmtree(folder)
    return seconds


def figures_of(rates: dict[int, float], times: dict[int, list[float]]) -> list[dict[str, Any]]:
    """Return throughput over that with the usual 2^4 bins, and each number's own figures."""
    base = rates.get(4, next(iter(rates.values())))
    figures = []
    for bits, least in GOALS.items():
        if bits in rates:
            share = rates[bits] / base
            name = f"throughput_{1 << bits}_over_16"
            figures.append(figure(name, share, "x", f">= {least}", share >= least))
    for bits, rate in rates.items():
        bins = 1 << bits
        figures.append(figure(f"records_per_second_{bins}_bins", rate, "records/s"))
        figures += [
            figure(f"step_p{p}_ms_{bins}_bins", ms, "ms")
            for p, ms in zip(PERCENTILES, times[bits], strict=True)
        ]
    return figures


def take_turns(context: Any, data: Path, folder: Path, chosen: Any) -> dict[int, list[float]]:
    """Return the seconds of the steps with each number of bins."""
    run(context, data, folder / "warm", chosen.bits[0], chosen)
    found: dict[int, list[float]] = {bits: [] for bits in chosen.bits}
    order = list(chosen.bits)
    for _ in range(chosen.turns):
        for bits in order:
            found[bits] += run(context, data, folder / str(bits), bits, chosen)
        order.reverse()  # so that no case always comes after the same one
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--bits", type=int, nargs="*", help="powers of two; by default 0 to 20")
    options.add_argument("--keys", type=int, default=1_000_000)
    options.add_argument("--files", type=int, default=40, help="how many files (steps)")
    options.add_argument("--rows", type=int, default=200_000, help="records a file and step")
    options.add_argument("--warm", type=int, default=10, help="steps that do not count")
    options.add_argument("--turns", type=int, default=4, help="runs of each number of bins")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.files, chosen.warm, chosen.turns = 12, 6, 1
    chosen.bits = chosen.bits or ([4, 12, 16, 20] if chosen.quick else [0, 4, 8, 12, 16, 20])
    folder = Path(tempfile.mkdtemp(prefix="headrace-bins-"))
    data = folder / "in"
    data.mkdir()
    write_input(data, chosen.files, chosen.rows, chosen.keys)
    spark = local_session(2)
    try:
        found = take_turns(spark.sparkContext, data, folder, chosen)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    rates = {bits: chosen.rows * len(seconds) / sum(seconds) for bits, seconds in found.items()}
    times = {
        bits: [percentile(seconds, p / 100) * 1e3 for p in PERCENTILES]
        for bits, seconds in found.items()
    }
    rows = [
        ["bins", "records/s", *(f"p{p} ms" for p in PERCENTILES[:-1]), "max ms", "Megaphone p99"]
    ]
    for bits, shown in times.items():
        theirs = MEGAPHONE_P99_MS.get(bits)
        rows.append(
            [
                f"2^{bits}",
                f"{rates[bits]:,.0f}",
                *(f"{ms:.0f}" for ms in shown),
                f"{theirs:g}" if theirs else "",
            ]
        )
    report("The price of bins", rows, figures_of(rates, times), chosen)


if __name__ == "__main__":
    main()
