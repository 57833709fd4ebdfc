"""Commands about the hosts of workers."""

from __future__ import annotations

import sys
from typing import Any

import click

from headrace.cli import completion
from headrace.cli.common import (
    REFUSED,
    ask,
    emit,
    head_of,
    output_option,
    storage_option,
    typed_errors,
    wait_option,
)
from headrace.control.control import Control
from headrace.errors import ChangeRefused
from headrace.ledger.commands import Command
from headrace.ledger.head import Head

_hosts_argument = click.argument(
    "hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=completion.hosts
)


@click.command()
@storage_option
@output_option
def hosts(storage: str, output: str) -> None:
    """Show the hosts of a pipeline, and which workers live on each. Changes nothing."""
    with typed_errors():
        facts = hosts_of(head_of(storage))
        lines = [_line(name, of) for name, of in facts.items()]
        emit(facts, "\n".join(lines) or "all tasks run on one host", output)


def hosts_of(head: Head) -> dict[str, dict[str, Any]]:
    """Return what a head records of each host, as plain data."""
    places = head.places
    names = sorted({*places.there, *places.worker_hosts, *head.drained_hosts} - {""})
    return {
        name: {
            "there": name in places.there,
            "drained": name in head.drained_hosts,
            "workers": places.on([name]),
        }
        for name in names
    }


def _line(name: str, of: dict[str, Any]) -> str:
    workers = ", ".join(str(worker) for worker in of["workers"]) or "none"
    notes = ["drained"] if of["drained"] else []
    notes += [] if of["there"] else ["no executor"]
    return f"{name}: workers {workers}" + (f" ({', '.join(notes)})" if notes else "")


@click.command("drain-hosts")
@_hosts_argument
@storage_option
@click.option("--dry-run", is_flag=True, help="Only print the plan.")
@wait_option
@output_option
def drain_hosts(
    hosts: tuple[str, ...], storage: str, dry_run: bool, seconds: float, output: str
) -> None:
    """Keep workers off HOSTs, so that these can be taken away. This survives a restart.

    "headrace hosts" shows when no worker lives there any more. "undrain-hosts" lets workers return.
    """
    with typed_errors():
        head_of(storage)
        if dry_run:
            _would(Control(storage), list(hosts), output)
            return
        ask(storage, Command("drain_hosts", hosts=list(hosts)), seconds, output)


def _would(control: Control, hosts: list[str], output: str) -> None:
    try:
        why = control.drain_hosts(hosts, dry_run=True).why
    except ChangeRefused as error:
        emit({"refused": error.what}, f"would be refused: {error.what}", output)
        sys.exit(REFUSED)
    emit({"why": why}, why or "no worker would have to move", output)


@click.command("undrain-hosts")
@_hosts_argument
@storage_option
@wait_option
@output_option
def undrain_hosts(hosts: tuple[str, ...], storage: str, seconds: float, output: str) -> None:
    """Let workers live on HOSTs again."""
    with typed_errors():
        head_of(storage)
        ask(storage, Command("undrain_hosts", hosts=list(hosts)), seconds, output)


COMMANDS = [hosts, drain_hosts, undrain_hosts]
