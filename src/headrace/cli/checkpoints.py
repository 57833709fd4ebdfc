"""Commands about checkpoints: list, verify and copy them, and delete what is not needed."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
import msgspec

from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.opening import pinned
from headrace.cli import completion
from headrace.cli.common import (
    DAMAGED,
    Duration,
    checkpoints_of,
    emit,
    output_option,
    say,
    storage_option,
    typed_errors,
)
from headrace.errors import Expired, StorageError
from headrace.eventtime.timestamps import show_time
from headrace.ledger.ledger import Ledger
from headrace.ledger.pins import Pins
from headrace.storage import open_store


@click.group()
def checkpoint() -> None:
    """Steps whose state can be opened: list, verify and copy them, and clean up."""


@checkpoint.command("list")
@storage_option
@output_option
def list_(storage: str, output: str) -> None:
    """Show the steps that can be opened. Changes nothing, fences no driver."""
    with typed_errors():
        found = checkpoints_of(storage)
        facts = [_facts_of(found, step) for step in found.versions()]
        pins = {name: pin for name, pin in Pins(found.store).known().items() if pin is not None}
        pinned = [{"name": name, **msgspec.to_builtins(pin)} for name, pin in pins.items()]
        lines = [_line(of) for of in facts]
        lines += [
            f"step {pin.step} is pinned until {show_time(pin.until_us)} by {pin.by or 'somebody'}"
            for pin in pins.values()
        ]
        emit({"checkpoints": facts, "pins": pinned}, "\n".join(lines), output)


def _facts_of(found: Checkpoints, step: int) -> dict[str, Any]:
    manifest, _ = Ledger(found.store).read(step)
    files = [*manifest.runs, *manifest.outputs, *manifest.retained]
    return {
        "step": step,
        "epoch": manifest.epoch,
        "kind": "claim" if manifest.claim else "step" if manifest.delivery >= 0 else "note",
        "base": manifest.base is not None,
        "clock": show_time(manifest.clock_us) if manifest.clock_us else None,
        "files": len(files),
        "bytes": sum(file.length for file in files),
    }


def _line(of: dict[str, Any]) -> str:
    base = ", base" if of["base"] else ""
    when = f" at {of['clock']}" if of["clock"] else ""
    return (
        f"{of['step']}: {of['kind']}{when}, epoch {of['epoch']}{base}, "
        f"wrote {of['bytes']:,} bytes in {of['files']} files"
    )


@checkpoint.command()
@storage_option
@click.option(
    "--step",
    type=click.IntRange(0),
    shell_complete=completion.steps,
    help="Only this one.  [default: all]",
)
@output_option
def verify(storage: str, step: int | None, output: str) -> None:
    """Read every byte of the checkpoints, and check it. Changes nothing, fences no driver.

    The exit code is 8 if something is wrong.
    """
    with typed_errors():
        found = checkpoints_of(storage)
        findings = []
        for finding in found.verify(step):
            findings.append(finding)
            if output == "text":
                say(f"{finding.file}: {finding.what}\n  remedy: {finding.remedy}")
        which = "all checkpoints are" if step is None else f"the checkpoint of step {step} is"
        emit(findings, f"{which} whole" if not findings else f"{len(findings)} found", output)
    if findings:
        sys.exit(DAMAGED)


@checkpoint.command()
@storage_option
@click.option(
    "--to",
    "target",
    required=True,
    shell_complete=completion.folders,
    help="A new directory, or another empty place.",
)
@click.option(
    "--step",
    type=click.IntRange(0),
    shell_complete=completion.steps,
    help="The step to copy.  [default: the newest]",
)
@click.option(
    "--pin-for",
    type=Duration(),
    default="1h",
    show_default=True,
    help="How long at most a running pipeline keeps the step meanwhile.",
)
@output_option
def copy(storage: str, target: str, step: int | None, pin_for: int, output: str) -> None:
    """Copy a checkpoint and verify it. The copy is a pipeline of its own. Fences no driver.

    The step is pinned until it is copied.
    """
    with typed_errors():
        found = checkpoints_of(storage)
        with _kept(found, step, pin_for) as checkpoint:
            copied = found.copy(checkpoint.step, open_store(target))
        text = f"step {copied.step} is at {target}: {copied.files} files, {copied.nbytes:,} bytes"
        newest = found.newest() if step is None else None
        if newest is not None and newest.step > copied.step:
            text += f"; {newest.step - copied.step} steps after it are not in it"
        emit(copied, text, output)


def _kept(found: Checkpoints, step: int | None, pin_for: int) -> Checkpoint:
    """Return a checkpoint with a pin of its own; without one if the storage is read-only.

    Raises:
        Expired: if the step is no longer retained.
    """
    while True:
        checkpoint = found.open(step)
        try:
            return pinned(checkpoint, pin_for, "checkpoint copy") if pin_for else checkpoint
        except Expired:
            if step is not None:
                raise  # by now, another step is the newest
        except StorageError:
            return checkpoint


@checkpoint.command()
@storage_option
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@output_option
def clean(storage: str, dry_run: bool, output: str) -> None:
    """Delete what is not needed: leftovers of lost attempts, dead files, and expired pins.

    A running pipeline does so by itself and is not harmed. This is for a pipeline that does not
    run.
    """
    with typed_errors():
        gone = checkpoints_of(storage).clean(time.time_ns() // 1_000, dry_run=dry_run)
        would = "would be deleted" if dry_run else "deleted"
        emit(gone, "\n".join([*gone, f"{len(gone)} files {would}"]), output)


COMMANDS = [checkpoint]
