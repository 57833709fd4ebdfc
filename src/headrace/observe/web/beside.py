"""The dashboard beside a run, from the process that runs it.

If other processes can read the storage, the server is one of them, so the driver's loop pays
nothing. It gets its socket and its token from here, and ends with this process, even if that is
killed: then its standard input ends. Of a storage that only this process has, it is a thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Literal

from headrace.errors import PipelineError
from headrace.errors.printable import hides_values
from headrace.observe.watching import StorageWatcher, shown_location
from headrace.observe.web.addresses import Address, hosts_of, listening_socket
from headrace.observe.web.packages import check_installed
from headrace.storage import Store, open_store

#: The port, unless another is given or this one is taken.
PORT = 9465
#: That port if it is free, else any that is.
AUTO: Literal["auto"] = "auto"
TOKEN_BYTES = 32
_LOOPBACK = "127.0.0.1"
_ENDING_S = 10


class DashboardBeside:
    """The dashboard of a storage, for a ``with`` block. It listens on this machine only.

    Args:
        storage: the storage, as it was given for the run.
        port: the port; 0 for any that is free; ``"auto"`` for 9465 if that is free, else any.
        option: the option or argument that asks for it, for errors.

    Attributes:
        url: its address, with the token; empty before it serves.

    Raises:
        PipelineError: on entering, if packages are missing or the port is taken.
    """

    def __init__(
        self,
        storage: str | os.PathLike[str] | Store,
        port: int | Literal["auto"] = AUTO,
        *,
        option: str = "hr.run(dashboard=True)",
    ) -> None:
        self.url = ""
        self._storage = storage
        self._port = port
        self._option = option
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> DashboardBeside:
        check_installed(self._option, "dashboard")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with contextlib.ExitStack() as ending:
            listening = ending.enter_context(_socket_on(self._port, self._option))
            at = Address(_LOOPBACK, listening.getsockname()[1])
            if (location := _seen_by_others(self._storage)) is None:
                ending.enter_context(_served_here(open_store(self._storage), at, token, listening))
            else:
                ending.enter_context(_served_by_another(location, token, listening))
            self.url = f"{at.url}/?token={token}"
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.url = ""
        self._ending.close()


def _socket_on(port: int | Literal["auto"], option: str) -> socket.socket:
    if port != AUTO:
        try:
            return listening_socket(Address(_LOOPBACK, port))
        except (PipelineError, OverflowError) as error:
            what = error.what if isinstance(error, PipelineError) else f"{port} is not a port"
            remedy = "give another port, or 0 for any that is free"
            raise PipelineError(what, place=option, remedy=remedy) from None
    with contextlib.suppress(PipelineError):
        return listening_socket(Address(_LOOPBACK, PORT))
    return listening_socket(Address(_LOOPBACK, 0))


def _seen_by_others(storage: str | os.PathLike[str] | Store) -> str | None:
    """Return the location by which other processes can open a storage; None if they cannot."""
    if isinstance(storage, Store):
        return None  # it may have been made with settings that its location does not hold
    location = os.fspath(storage)
    return None if location.startswith("memory:") else location


@contextlib.contextmanager
def _served_by_another(location: str, token: str, listening: socket.socket) -> Iterator[None]:
    command = [sys.executable, "-m", "headrace.cli", "dashboard", "--storage", location]
    handle = listening.fileno()
    started = subprocess.Popen(
        [*command, "--inherited", str(handle)], stdin=subprocess.PIPE, pass_fds=[handle]
    )
    listening.close()  # the other process has it, and answers those who have called already
    try:
        with contextlib.suppress(OSError):  # it has ended, and said why
            assert started.stdin is not None
            started.stdin.write(f"{token}\n".encode())
            started.stdin.flush()
        yield
    finally:
        started.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(_ENDING_S)
        started.kill()
        started.wait()
        if started.stdin is not None:
            with contextlib.suppress(OSError):
                started.stdin.close()


@contextlib.contextmanager
def _served_here(store: Store, at: Address, token: str, listening: socket.socket) -> Iterator[None]:
    from headrace.observe.web.dashboard import Dashboard
    from headrace.observe.web.guard import Access
    from headrace.observe.web.server import serving

    access = Access(
        hosts_of(at), token, show_values=not hides_values(), cookie=f"headrace-{at.port}"
    )
    watcher = StorageWatcher(
        1, store, shown_location(store.location), show_values=access.show_values, keeps_states=True
    )
    found = Dashboard([watcher], [store], access)
    with serving(found.app, listening, found.close):
        yield
