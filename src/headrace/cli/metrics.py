"""The command that exports metrics of pipelines, from any process that can read their storage."""

from __future__ import annotations

import time
from pathlib import Path

import click

from headrace.cli.common import (
    NothingThere,
    allow_host_option,
    no_pipeline,
    say,
    say_as_it_is,
    storages_option,
    store_of,
    typed_errors,
)
from headrace.observe.observer import PipelineObserver
from headrace.observe.watching import Reading, StorageWatcher, shown_location
from headrace.observe.web.addresses import Address, address_of, hosts_of, listening_socket
from headrace.observe.web.packages import check_installed
from headrace.observe.web.tokens import check_reach, read_token
from headrace.storage import open_store


@click.command()
@storages_option
@click.option(
    "--listen",
    default="127.0.0.1:9464",
    show_default=True,
    metavar="HOST:PORT",
    help="The address to serve on. Other machines need a token.",
)
@click.option("--once", is_flag=True, help="Print the metrics, and exit.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    help="A storage is read at most once in this many seconds.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the token that requests must show, as Authorization: Bearer TOKEN.",
)
@allow_host_option
def metrics(
    storages: tuple[str, ...],
    listen: str,
    once: bool,
    every: float,
    token_file: Path | None,
    allow_host: tuple[str, ...],
) -> None:
    """Export metrics of pipelines for Prometheus, with health checks. Changes nothing.

    Serves /metrics, /healthz, /readyz, /api/v1/pipelines and /api/v1/picture until Ctrl-C or
    SIGTERM. It reads the storage only when it is asked.
    """
    with typed_errors():
        check_installed()
        if once:
            _print_once(storages)
            return
        address = address_of(listen)
        token = "" if token_file is None else read_token(token_file)
        check_reach(address, token)
        _serve(storages, address, token, every, allow_host)


def _print_once(storages: tuple[str, ...]) -> None:
    from headrace.observe.metrics import exposition

    data, _ = exposition([_read(storage) for storage in storages])
    say_as_it_is(data.decode())


def _read(storage: str) -> Reading:
    now_us = time.time_ns() // 1_000
    picture = PipelineObserver(store_of(storage)).look(now_us)
    if picture is None:
        raise no_pipeline(storage)
    place = shown_location(storage)
    return Reading(picture.pipeline, place, "read", picture, now_us / 1e6, 0.0, None)


def _serve(
    storages: tuple[str, ...],
    address: Address,
    token: str,
    every_s: float,
    more_hosts: tuple[str, ...],
) -> None:
    from headrace.observe.web.app import create_app
    from headrace.observe.web.guard import Access
    from headrace.observe.web.server import serve

    watchers = [
        StorageWatcher(number, open_store(storage), shown_location(storage), every_s=every_s)
        for number, storage in enumerate(storages, start=1)
    ]
    for storage in storages:
        warn_if_missing(storage)
    app = create_app(watchers, Access(hosts_of(address, more_hosts), token))
    with listening_socket(address) as listening:
        at = Address(address.host, listening.getsockname()[1])
        say(f"serving {at.url}/metrics (Ctrl-C ends it)", err=True)
        serve(app, listening)


def warn_if_missing(storage: str) -> None:
    """Say that a storage is not there yet, and go on."""
    try:
        store_of(storage)
    except NothingThere as missing:
        say(f"{missing} yet: its pipeline is shown once it runs", err=True)


COMMANDS = [metrics]
