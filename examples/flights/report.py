"""The results of the flights job: as text, and as a picture."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import Any

AIRPORTS = ["EWR", "JFK", "LGA"]


def rows(directory: Path) -> list[dict[str, Any]]:
    """Return all rows in a sink's files, in the order of steps.

    Rows of 2014 are left out. The stream ends in the first hours of that year, with a few flights
    of the year before.
    """
    files = sorted(directory.glob("step-*.jsonl"))
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [row for row in found if row["date"] < "2014"]


def storms(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the days on which an airport's traffic dipped, the worst over all airports first."""
    by_day: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(out / "airport_anomalies"):
        if row["kind"] == "dip":
            by_day[row["date"]].append(row)
    worst = sorted(by_day, key=lambda day: sum(row["sigmas"] for row in by_day[day]))
    return {day: by_day[day] for day in worst}


def text(out: Path) -> str:
    """Return the findings as text."""
    found = storms(out)
    lines = [
        "Days on which traffic dipped, worst first (departures on that day, of the usual number):"
    ]
    for day, dips in found.items():
        parts = [
            f"{d['key']} {d['departures']} of {d['expected']:.0f}"
            for d in sorted(dips, key=lambda row: row["key"])
        ]
        lines.append(f"  {day}  {', '.join(parts)}")
    spikes = [row for row in rows(out / "airport_anomalies") if row["kind"] == "spike"]
    lines.append(f"Days on which traffic of an airport spiked: {len(spikes)}")
    carriers = rows(out / "carrier_anomalies")
    kinds = [sum(row["kind"] == kind for row in carriers) for kind in ("dip", "spike")]
    lines.append(f"Days of single carriers: {kinds[0]} dips, {kinds[1]} spikes")
    return "\n".join(lines)


def plot(out: Path, path: Path) -> None:
    """Draw departures a day against the model, with the dips marked."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    days = rows(out / "airport_days")
    dips = {(row["key"], row["date"]) for row in rows(out / "airport_anomalies")}
    figure, axes = plt.subplots(3, 1, figsize=(12, 8), sharex=True)
    for airport, axis in zip(AIRPORTS, axes, strict=True):
        own = [row for row in days if row["key"] == airport]
        dates = [date.fromisoformat(row["date"]) for row in own]
        axis.plot(dates, [row["expected"] for row in own], color="#bbbbbb", label="usual")
        axis.plot(dates, [row["departures"] for row in own], color="#1f5f8b", label="departures")
        marked = [row for row in own if (airport, row["date"]) in dips]
        axis.scatter(
            [date.fromisoformat(row["date"]) for row in marked],
            [row["departures"] for row in marked],
            color="#c0392b",
            zorder=3,
            label="anomaly",
        )
        axis.set_ylabel(f"{airport}: departures a day")
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="lower right", ncols=3)
    axes[0].set_title("Departures from New York in 2013, and the days that left the model")
    figure.tight_layout()
    # Matplotlib leaves the types of its further options open.
    figure.savefig(path, dpi=110)  # pyright: ignore[reportUnknownMemberType]
    plt.close(figure)
