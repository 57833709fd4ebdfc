"""Strategies of migrations, and ways of sharding, on the command line."""

from __future__ import annotations

from typing import Any

import click

from headrace.control.migrations import Strategy
from headrace.errors import PipelineError
from headrace.migration.rounds import all_at_once, batched, fluid
from headrace.migration.sharding import Sharding, contiguous, dynamic, fixed

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


LAYOUTS = "fixed, contiguous, dynamic (within 10 %), or dynamic:SHARE."


def sharding_of(_: Any, __: Any, text: str | None) -> Sharding | None:
    """Return the way of sharding that an option names; None if it is not given.

    Raises:
        click.BadParameter: if there is no such way.
    """
    if text is None:
        return None
    name, colon, share = text.partition(":")
    if not colon and name in ("fixed", "contiguous"):
        return fixed() if name == "fixed" else contiguous()
    if name == "dynamic":
        try:
            return dynamic(float(share)) if colon else dynamic()
        except (ValueError, PipelineError) as error:
            raise click.BadParameter("a share is between 0 and 1, as in dynamic:0.05") from error
    raise click.BadParameter("use fixed, contiguous, dynamic, or dynamic:SHARE")


def layout_option(help: str) -> Any:
    """Return the option that names a way of sharding."""
    return click.option("--layout", callback=sharding_of, help=f"{help}: {LAYOUTS}")
