"""What a checkpoint or a head holds, in a few words for each computation."""

from __future__ import annotations

from html import escape

from headrace.checkpoints.components import components_of
from headrace.errors.printable import one_line
from headrace.eventtime.timestamps import show_time
from headrace.ledger.head import Head

#: One computation: name, records, late records, watermark, what it keeps.
Row = tuple[str, str, str, str, str]
HEADINGS: Row = ("computation", "records", "late", "watermark", "keeps")


def rows_of(head: Head) -> list[Row]:
    """Return a row for each computation, in the order of :data:`HEADINGS`."""
    return [
        (
            one_line(of.name) + ("" if of.removed is None else " (removed)"),
            f"{of.counts.records:,}",
            f"{of.counts.late:,}",
            show_time(of.output_watermark),
            one_line(", ".join(f"{name}: {kind}" for name, kind in of.state.items())),
        )
        for of in components_of(head).values()
    ]


def headline_of(head: Head) -> str:
    """Return how far a pipeline is, in one line."""
    workers = head.layout.workers
    return (
        f"step {head.step:,}, epoch {head.epoch}, {workers} worker{'' if workers == 1 else 's'}"
        + (", paused" if head.paused else "")
    )


def text_of(head: Head) -> str:
    """Return a head as text: how far it is, and a table of its computations."""
    rows = [HEADINGS, *rows_of(head)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADINGS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([headline_of(head), *(f"  {line}" for line in lines)])


def html_of(head: Head) -> str:
    """Return a head as HTML: how far it is, and a table of its computations."""
    rows = "".join(f"<tr>{_cells(row, 'td')}</tr>" for row in rows_of(head))
    return (
        f"<p>{escape(headline_of(head))}</p>"
        f"<table><thead><tr>{_cells(HEADINGS, 'th')}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _cells(row: Row, tag: str) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
