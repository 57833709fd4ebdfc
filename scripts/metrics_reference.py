"""Print the reference of the metrics, from their definitions.

python scripts/metrics_reference.py > docs/reference/metrics.md
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.observe.metric_definitions import (
    BUILD_INFO,
    METRICS,
    STEP_DURATION,
    STORAGE_METRICS,
    Definition,
)

HEAD = """\
# Metrics

`headrace metrics` exports these metrics for Prometheus. [Watch pipelines with
Prometheus](../how-to/metrics.md) says how to scrape them, and what to do about the alerts.

This page is generated from the help texts of the metrics: `python scripts/metrics_reference.py`.

- **`pipeline`** is the name of a pipeline. If two storages have a pipeline of one name, the later one is
  called `NAME#N`, after the place of its storage on the command line.
- **`computation`** is the name of a computation. An injector with record ids has one called `NAME.ids`, which
  drops duplicates, and one with dead letters has `NAME.dead_letter`, which counts them as produced.
- **Counters** are exact. A series ends when its computation is forgotten.
- **No label grows without bound.** Labels are names within a pipeline, numbers of workers, and words from fixed
  lists. No key, value, host or location is in any of them.
- **A storage that cannot be read** has only the metrics of the first table. Numbers of an earlier time would
  look like present ones.
"""

RECENT = """
The metrics that begin with `headrace_recent_` are about the newest steps whose manifests are in storage, at
most 100 of them. They are what [`headrace top`](../how-to/see-where-time-goes.md) shows.
"""


def table(definitions: Iterable[Definition]) -> str:
    """Return a table of metrics."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for of in definitions:
        labels = ", ".join(f"`{label}`" for label in of.all_labels)
        rows.append(f"| `{of.name}` | {of.kind} | {labels} | {of.help} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """Return the whole page."""
    recent = [of for of in METRICS if of.name.startswith("headrace_recent_")]
    others = [of for of in METRICS if of not in recent]
    parts = [
        HEAD,
        "## The exporter and its storages\n",
        table([BUILD_INFO, *STORAGE_METRICS]),
        "## A pipeline\n",
        table(others),
        "## Its newest steps\n" + RECENT,
        table(recent),
        "## A run\n",
        table([STEP_DURATION]),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
