"""What bins cost: a running count with 2^4 to 2^20 bins, and with one, which is none at all.

For each number of bins records/s at steps of ``--rows`` records, and the percentiles of a step's time that
Megaphone's table gives. All in one session, each number of bins with a storage of its own; the first
figure compares 2^12 with 2^4.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from benchmarks.count import headrace
from benchmarks.harness import figure, local_session, parser, percentile, report
from benchmarks.inputs import write_input

#: bits → how much of the throughput at 2^4 must be left
GOALS = {12: 0.97, 16: 0.90, 20: 0.50}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--bits", type=int, nargs="*", default=[0, 4, 8, 12, 16, 20])
    options.add_argument("--keys", type=int, default=1_000_000)
    options.add_argument("--files", type=int, default=40, help="how many files (steps)")
    options.add_argument("--rows", type=int, default=200_000, help="records a file and step")
    options.add_argument("--warm", type=int, default=10, help="steps that do not count")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.files, chosen.warm, chosen.bits = 14, 6, [4, 12, 16]
    folder = Path(tempfile.mkdtemp(prefix="headrace-bins-"))
    data = folder / "in"
    data.mkdir()
    write_input(data, chosen.files, chosen.rows, chosen.keys)
    spark = local_session(2)
    rates: dict[int, float] = {}
    rows = [["bins", "records/s", "p50 ms", "p90 ms", "p99 ms", "max ms"]]
    try:
        for bits in chosen.bits:
            way = argparse.Namespace(
                emit="none", rows=chosen.rows, exchange="shuffle", workers=2, bins=1 << bits,
                warm=chosen.warm,
            )  # fmt: skip
            own = folder / str(bits)
            own.mkdir()
            seconds, _, _ = headrace(spark.sparkContext, data, own, way)
            shutil.rmtree(own)
            rates[bits] = chosen.rows * len(seconds) / sum(seconds)
            shown = [f"{percentile(seconds, p) * 1e3:.0f}" for p in (0.5, 0.9, 0.99, 1.0)]
            rows.append([f"2^{bits}", f"{rates[bits]:,.0f}", *shown])
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    base = rates.get(4, rates[chosen.bits[0]])
    figures = []
    for bits, least in GOALS.items():
        if bits in rates:
            share = rates[bits] / base
            name = f"throughput_{1 << bits}_over_16"
            figures.append(figure(name, share, "x", f">= {least}", share >= least))
    figures += [
        figure(f"records_per_second_{1 << b}_bins", r, "records/s") for b, r in rates.items()
    ]
    report("The price of bins", rows, figures, chosen)


if __name__ == "__main__":
    main()
