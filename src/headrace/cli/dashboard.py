"""The command that shows pipelines in a browser, from any process that can read their storage."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from headrace.cli.common import (
    allow_host_option,
    json_log,
    no_pipeline,
    say,
    say_as_it_is,
    storage_option,
    storages_option,
    store_of,
    typed_errors,
)
from headrace.cli.metrics import warn_if_missing
from headrace.errors import PipelineError
from headrace.errors.printable import hides_values
from headrace.logs import announce
from headrace.observe.watching import StorageWatcher, shown_location
from headrace.observe.web.addresses import Address, address_of, hosts_of, listening_socket
from headrace.observe.web.beside import TOKEN_BYTES
from headrace.observe.web.packages import check_installed
from headrace.observe.web.tokens import check_reach, read_token
from headrace.storage import open_store

if TYPE_CHECKING:
    from headrace.observe.web.guard import Access


@click.command()
@storages_option
@click.option(
    "--listen",
    default="127.0.0.1:9465",
    show_default=True,
    metavar="HOST:PORT",
    help="The address to serve on; port 0 for a free one. For other machines, give --token-file.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    help="A storage is read at most once in this many seconds, and only while somebody looks.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the token that browsers and programs must show.  [default: a random one]",
)
@allow_host_option
@click.option(
    "--show-values/--hide-values",
    default=None,
    help="Whether keys and stored values may be looked at.  [default: on 127.0.0.1 only]",
)
@click.option(
    "--allow-commands",
    is_flag=True,
    help="Let the page pause, resume and rescale pipelines, and control migrations.",
)
@click.option(
    "--inherited", type=int, hidden=True, help="The socket of the process that starts this one."
)
def dashboard(
    storages: tuple[str, ...],
    listen: str,
    every: float,
    token_file: Path | None,
    allow_host: tuple[str, ...],
    show_values: bool | None,
    allow_commands: bool,
    inherited: int | None,
) -> None:
    """Show pipelines in a browser, live. Changes nothing, unless commands are allowed.

    Prints an address with a token, and serves until Ctrl-C or SIGTERM. It reads the storages alone,
    so it also shows a pipeline whose driver is gone, or runs elsewhere. Serves /metrics, too.
    """
    with typed_errors():
        check_installed("headrace dashboard", "dashboard")
        from headrace.observe.web.guard import Access

        if inherited is not None:
            _serve_for_parent(storages, inherited, every)
            return
        address = address_of(listen)
        given = "" if token_file is None else read_token(token_file)
        check_reach(address, given)
        shows = address.is_loopback if show_values is None else show_values
        access = Access(
            hosts_of(address, allow_host),
            given or secrets.token_urlsafe(TOKEN_BYTES),
            show_values=shows and not hides_values(),
            allow_commands=allow_commands,
        )
        for storage in storages:
            warn_if_missing(storage)
        with listening_socket(address) as listening:
            at = Address(address.host, listening.getsockname()[1])
            url = f"{at.url}/?token={access.token}"
            if json_log() is None:
                say_as_it_is(f"open {url} (Ctrl-C ends it)\n", err=True)
            else:
                announce("the dashboard is open", dashboard=url)
            _serve(storages, listening, access, every)


def _serve_for_parent(storages: tuple[str, ...], handle: int, every_s: float) -> None:
    """Serve on the socket of the process that started this one, and end with that process.

    The token comes first on standard input, where no other user of the machine can see it.
    """
    from headrace.observe.web.guard import Access

    token = sys.stdin.buffer.readline().decode().strip()
    if not token:
        return  # that process has ended already
    threading.Thread(target=_end_with_input, daemon=True).start()
    with socket.socket(fileno=handle) as listening:
        address = Address(*listening.getsockname()[:2])
        access = Access(hosts_of(address), token, show_values=not hides_values())
        _serve(storages, listening, access, every_s)


def _end_with_input() -> None:
    """End this process when its standard input does, as SIGTERM would."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _serve(
    storages: tuple[str, ...], listening: socket.socket, access: Access, every_s: float
) -> None:
    from headrace.observe.web.dashboard import Dashboard
    from headrace.observe.web.server import serve

    stores = [open_store(storage) for storage in storages]
    watchers = [
        StorageWatcher(
            number,
            store,
            shown_location(storage),
            every_s=every_s,
            show_values=access.show_values,
            keeps_states=True,
        )
        for number, (store, storage) in enumerate(zip(stores, storages, strict=True), start=1)
    ]
    # Browsers send cookies to all ports of a host, so each server has a name of its own.
    access = msgspec.structs.replace(access, cookie=f"headrace-{listening.getsockname()[1]}")
    found = Dashboard(watchers, stores, access, every_s=every_s)
    serve(found.app, listening, found.close)


@click.command()
@storage_option
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file to write, such as report.html.",
)
@click.option("--show-values", is_flag=True, help="Also name hot keys.")
def report(storage: str, path: Path, show_values: bool) -> None:
    """Write what the dashboard shows now into one file of HTML, to keep or to send on.

    It holds names, positions, times and errors, and no stored values; keys only if asked for. It
    needs no server and no network. Changes nothing in the storage.
    """
    with typed_errors():
        from headrace.observe.web.report import report_of

        shows = show_values and not hides_values()
        watcher = StorageWatcher(
            1, store_of(storage), shown_location(storage), show_values=shows, keeps_states=True
        )
        sight = watcher.sight()
        if sight.reading.state == "unreachable":
            raise PipelineError(sight.reading.why, place=sight.reading.storage)
        if sight.reading.picture is None:
            raise no_pipeline(storage)
        text = report_of(sight)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise PipelineError(
                f"the report cannot be written: {error.strerror or error}", place=str(path)
            ) from None
        say(f"{path}: step {sight.reading.picture.step} of {sight.reading.pipeline}", err=True)


COMMANDS = [dashboard, report]
