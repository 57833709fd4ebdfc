"""Megaphone's Table 1: lines of code of each query, migratable and not.

Migratable is on our computations and operators, native in plain PySpark, where that can say it; counted
as :mod:`benchmarks.nexmark.lines` does.
"""

from __future__ import annotations

from benchmarks.evaluation.common import options
from benchmarks.evaluation.papers import LINES
from benchmarks.harness import figure, report
from benchmarks.nexmark.lines import table


def main() -> None:
    chosen = options("lines", __doc__).parse_args()
    rows = [["query", "Headrace", "PySpark", "Megaphone", "timely dataflow"]]
    figures = []
    for query, own, native in table():
        theirs = [str(lines) for lines in LINES.get(query, ("", ""))]
        rows.append([query, str(own), str(native or ""), *theirs])
        figures.append(figure(f"{query}_lines", own or 0, "lines"))
    report("Lines of code", rows, figures, chosen)


if __name__ == "__main__":
    main()
