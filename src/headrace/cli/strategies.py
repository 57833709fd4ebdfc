"""Strategies of migrations on the command line."""

from __future__ import annotations

from typing import Any

import click

from headrace.control.migrations import Strategy
from headrace.migration.rounds import all_at_once, batched, fluid

STRATEGIES = "all-at-once, fluid (a bin a round), batched (each worker once a round), or batched:N."


def strategy_of(_: Any, __: Any, text: str | None) -> Strategy | None:
    """Return the strategy that an option names; None if it is not given.

    Raises:
        click.BadParameter: if there is no such strategy.
    """
    if text is None:
        return None
    name, colon, bins = text.partition(":")
    if name == "batched" and (not colon or (bins.isdigit() and int(bins))):
        return batched(int(bins) if bins else None)
    if not colon and name in ("all-at-once", "fluid"):
        return all_at_once() if name == "all-at-once" else fluid()
    raise click.BadParameter("use all-at-once, fluid, batched, or batched:N")
