"""Policies on the command line: measurements, decisions, and a policy loop in a process of its own.

That loop needs nothing but the pipeline's storage. It reads measurements there, and writes commands
there.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import click
import msgspec

from headrace.cli.common import REFUSED, emit, head_of, output_option, storage_option, typed_errors
from headrace.cli.migrations import MOVES
from headrace.control.control import Control
from headrace.driver.policy_loop import is_calm
from headrace.errors import ChangeRefused
from headrace.ledger.measurements import Published
from headrace.ledger.migrations import Latency
from headrace.observe.durations import show_duration
from headrace.policies import NAMES, How, Policy, command_for, name_of, named


def _options(_: Any, __: Any, pairs: tuple[str, ...]) -> dict[str, str]:
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if "" in found.values() or "" in found:
        raise click.BadParameter("use NAME=VALUE")
    return found


policy_option = click.option(
    "--policy", "name", type=click.Choice(NAMES), help="The policy to ask."
)
set_option = click.option(
    "--set",
    "options",
    multiple=True,
    callback=_options,
    metavar="NAME=VALUE",
    help="An option of the policy, such as most=8. Repeatable.",
)


@click.group()
def policy() -> None:
    """Show measurements and decisions, or let a policy change the layout."""


@policy.command()
@storage_option
@output_option
def show(storage: str, output: str) -> None:
    """Show the latest measurements, and the decision of the run's policy. Changes nothing."""
    with typed_errors():
        head_of(storage)
        seen = Control(storage).measurements()
        facts = None if seen is None else facts_of(seen)
        text = "nothing was measured yet" if seen is None else _text(seen)
        emit(facts, text, output)


@policy.command("run")
@policy_option
@set_option
@storage_option
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=10.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Print the decision once, and exit.")
@click.option("--dry-run", is_flag=True, help="Only print the decision.")
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Seconds to wait for the answer.",
)
@output_option
def run(
    name: str | None,
    options: dict[str, str],
    storage: str,
    every: float,
    once: bool,
    dry_run: bool,
    seconds: float,
    output: str,
    strategy: Any,
    prepare: bool | None,
    objective: int,
) -> None:
    """Let a policy steer a pipeline that another process runs, by its measurements.

    Ctrl-C ends it.
    """
    if name is None:
        raise click.UsageError("Missing option '--policy'.")
    with typed_errors():
        chosen = named(name, options)
        how = How(
            strategy=strategy, prepare=prepare, objective=f"{objective}us" if objective else None
        )
        control = Control(storage)
        head_of(storage)
        looked_at: Published | None = None
        try:
            while True:
                seen = control.measurements()
                if seen is not None and seen != looked_at:
                    looked_at = seen
                    _look(control, chosen, how, seen, dry_run, seconds, output)
                elif once:
                    emit(None, "nothing was measured yet", output)
                if once:
                    return
                time.sleep(every)
        except KeyboardInterrupt:
            return


for _option in reversed(MOVES):
    run = _option(run)


def _look(
    control: Control,
    chosen: Policy,
    how: How,
    seen: Published,
    dry_run: bool,
    seconds: float,
    output: str,
) -> None:
    """Print what a policy decides, and send the command."""
    head = control.head()
    facts: dict[str, Any] = {"policy": name_of(chosen), "step": seen.step}
    if not is_calm(head):
        emit({**facts, "decided": None}, f"step {seen.step}: something moves, or is paused", output)
        return
    decided = chosen.decide(seen.measurements)
    command = command_for(chosen, decided, how)
    facts |= {"decided": str(decided), "wants": command is not None, "dry_run": dry_run}
    text = f"step {seen.step}: {decided}"
    if command is None or dry_run:
        emit(facts, text, output)
        return
    answer = control.answered(command, seconds)
    text = "not answered yet" if answer is None else answer.why
    emit({**facts, "answer": msgspec.to_builtins(answer)}, f"{text} ({text})", output)
    if answer is not None and not answer.applied:
        sys.exit(REFUSED)


def facts_of(seen: Published) -> dict[str, Any]:
    """Return measurements as plain data. Of the bins, only their number is included."""
    facts: dict[str, Any] = msgspec.to_builtins(seen)
    for name in ("layout", "sizes", "records", "busy_us"):
        facts.pop(name, None)
    return {**facts, "bins": len(seen.records)}


def _text(seen: Published) -> str:
    more = ", and more is waiting" if seen.saturated else ""
    lines = [f"step {seen.step}: {seen.arrivals_per_s:,.0f} records/s come in{more}"]
    lines += [] if seen.known else ["  too little has been measured yet to compare bins"]
    steps: Latency = seen.steps
    if steps.steps:
        lines.append(
            f"  steps: p50 {show_duration(steps.p50_us)}, p99 {show_duration(steps.p99_us)}"
        )
    for worker, state in enumerate(seen.state_bytes):
        rate = seen.true_rates[worker]
        fast = f", {rate:,.0f} records/s at work" if rate else ""
        busy = seen.worker_busy_us[worker] / 1e3
        lines.append(f"  worker {worker}: {state:,} bytes of state, {busy:.1f} ms a step{fast}")
    opening = seen.opening
    how = "measured" if opening.measured else "assumed"
    lines.append(
        f"  opening state: {opening.bytes_per_s / 1e6:,.0f} MB/s, "
        f"{opening.bin_us / 1e3:.2f} ms a bin ({how})"
    )
    if seen.decision is not None:
        dry = " (dry run)" if seen.decision.dry_run else ""
        lines.append(f"  policy {seen.decision.policy}{dry}: {seen.decision.decided}")
    return "\n".join(lines)


def checked(name: str | None, options: dict[str, str]) -> Policy | None:
    """Return the policy of ``headrace run``, if one was asked for.

    Raises:
        ChangeRefused: if options are given without a policy.
    """
    if name is None and options:
        raise ChangeRefused("--set is for a policy", remedy="name one with --policy")
    return None if name is None else named(name, options)


COMMANDS = [policy]
