"""What is served beside a run: the dashboard, by a process of its own, and the metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from headrace.cli.common import say
from headrace.errors import PipelineError
from headrace.logs import announce
from headrace.observe.step_durations import StepDurations
from headrace.observe.watching import StorageWatcher, shown_location
from headrace.observe.web.addresses import Address, address_of, hosts_of, listening_socket
from headrace.observe.web.beside import AUTO, PORT, DashboardBeside
from headrace.observe.web.packages import check_installed
from headrace.observe.web.tokens import check_reach, read_token
from headrace.storage import open_store

#: Stands for the usual port of the dashboard, or any if that is taken.
AUTO_PORT = -1
_MOST_PORT = 65_535


class Port(click.ParamType[int]):
    """A port of this machine; 0 for a free one."""

    name = "port"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Return the port as a number."""
        text = str(value)
        if text == str(AUTO_PORT):
            return AUTO_PORT
        if text.isdecimal() and int(text) <= _MOST_PORT:
            return int(text)
        return self.fail(f"{text!r} is not a port: say --dashboard={PORT}", param, ctx)


dashboard_option = click.option(
    "--dashboard",
    "port",
    type=Port(),
    is_flag=False,
    flag_value=str(AUTO_PORT),
    metavar="[PORT]",
    help="Also serve the dashboard, from a process of its own. After TARGET, or as --dashboard=PORT.  "
    f"[default port: {PORT}, or any that is free]",
)


metrics_options = [
    click.option(
        "--metrics",
        "metrics_at",
        metavar="HOST:PORT",
        help="Also serve the metrics of this run, with a histogram of its steps.",
    ),
    click.option(
        "--metrics-token-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="A file with the token that requests for metrics must show.",
    ),
]


@contextlib.contextmanager
def metrics_beside(
    storage: str, pipeline: str, at: str | None, token_file: Path | None
) -> Iterator[list[StepDurations]]:
    """Serve the metrics of a run while the ``with`` block runs. Yield the listeners of the run.

    It answers in a thread of its own. All but the histogram is read from storage when a request
    comes.

    Raises:
        PipelineError: if packages are missing, the address cannot be used, or needs a token.
    """
    if at is None:
        yield []
        return
    if storage.startswith("memory:"):
        raise PipelineError(
            "nothing else can see a storage in memory", remedy="give a directory as --storage"
        )
    check_installed("headrace run --metrics", "metrics")
    from headrace.observe.web.app import create_app
    from headrace.observe.web.guard import Access
    from headrace.observe.web.server import serving

    address = address_of(at)
    token = "" if token_file is None else read_token(token_file)
    check_reach(address, token, option="--metrics-token-file")
    durations = StepDurations(pipeline)
    watcher = StorageWatcher(1, open_store(storage), shown_location(storage))
    with listening_socket(address, option="--metrics") as listening:
        served = Address(address.host, listening.getsockname()[1])
        say(f"serving {served.url}/metrics", err=True)
        app = create_app([watcher], Access(hosts_of(served), token), durations)
        with serving(app, listening):
            yield [durations]


@contextlib.contextmanager
def dashboard_beside(storage: str, port: int | None) -> Iterator[None]:
    """Serve the dashboard of a storage while the ``with`` block runs; nothing without a port.

    Args:
        storage: the storage of the run.
        port: the port; :data:`AUTO_PORT` for the usual one, or any if that is taken.

    Raises:
        PipelineError: if the port is taken, or packages are missing.
    """
    if port is None:
        yield
        return
    wanted = AUTO if port == AUTO_PORT else port
    with DashboardBeside(storage, wanted, option="headrace run --dashboard") as found:
        announce("the dashboard is open", dashboard=found.url)
        yield
