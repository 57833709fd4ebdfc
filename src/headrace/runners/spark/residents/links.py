"""Links between the driver and resident workers: sockets on which both have proved who they are.

On the driver's host they are Unix sockets in a directory that only this user can read. Elsewhere they
are of TCP. Both ends prove that they know a key, which travels to the residents with their code.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import msgspec

from headrace.runners.spark.residents.orders import Hello

#: What may happen to a link whose other end has gone.
BROKEN = (OSError, EOFError, AuthenticationError, msgspec.DecodeError)
_KEY_BYTES = 32
#: How long the driver waits for the rest of a message, or for room to send, in whole seconds.
_STALLS_S = 3
#: How long anybody who arrives has to prove who it is, in seconds, and how many may at a time.
_ARRIVES_S, _MOST_ARRIVING = 5.0, 128
#: How often the entrance looks whether it is closed, in seconds.
_LOOK_S = 0.5
_hello = msgspec.msgpack.Decoder(Hello)


class Address(msgspec.Struct, frozen=True):
    """Where residents reach the driver.

    Attributes:
        path: a Unix socket; "" for TCP.
        host, port: of TCP.
        key: what both ends know.
    """

    path: str
    host: str
    port: int
    key: bytes


def connect(address: Address, hello: Hello) -> Connection:
    """Return the resident's end of a link.

    Raises:
        OSError, EOFError, AuthenticationError: the driver cannot be reached, or refuses it.
    """
    if address.path:
        of = socket.socket(socket.AF_UNIX)
        of.connect(address.path)
    else:
        of = socket.create_connection((address.host, address.port), _STALLS_S)
        of.settimeout(None)
    link = Connection(of.detach())
    _limit_waiting(link, _STALLS_S)
    if not address.path:
        _send_at_once(link)
    answer_challenge(link, address.key)
    deliver_challenge(link, address.key)
    link.send_bytes(msgspec.msgpack.encode(hello))
    _limit_waiting(link, 0)  # orders may be long in coming, and a driver may stand still
    return link


class Entrance:
    """Where residents arrive.

    Args:
        hosts: the address at which residents on other hosts reach the driver, and the one that it
            listens on; None if all are on its host.
        arrived: called in a thread with each link, and what the resident has said.

    Attributes:
        address: what residents need in order to come.
    """

    def __init__(
        self, hosts: tuple[str, str] | None, arrived: Callable[[Connection, Hello], None]
    ) -> None:
        self._arrived = arrived
        self._directory = ""
        self._closed = False
        self._room = threading.BoundedSemaphore(_MOST_ARRIVING)
        key = os.urandom(_KEY_BYTES)
        if hosts is None:
            self._directory = tempfile.mkdtemp(prefix="hr-")
            path = os.path.join(self._directory, "s")
            self._socket = socket.socket(socket.AF_UNIX)
            self.address = Address(path, "", 0, key)
            self._listen(path)
        else:
            shown, own = hosts
            family, *_, where = socket.getaddrinfo(own, 0, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family)
            self._listen(where)
            self.address = Address("", shown, int(self._socket.getsockname()[1]), key)
        threading.Thread(target=self._accept, name="headrace-entrance", daemon=True).start()

    def _listen(self, where: Any) -> None:
        try:
            self._socket.bind(where)
            self._socket.listen(_MOST_ARRIVING)
            self._socket.settimeout(_LOOK_S)
        except BaseException:
            self.close()
            raise

    def _accept(self) -> None:
        while not self._closed:
            try:
                arrived, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # it is closed; or there are no descriptors left
                time.sleep(_LOOK_S / 10)
                continue
            arrived.setblocking(True)
            link = Connection(arrived.detach())
            if not self._room.acquire(blocking=False):
                link.close()
                continue
            try:
                threading.Thread(
                    target=self._receive, args=(link,), name="headrace-arrival", daemon=True
                ).start()
            except RuntimeError:  # no more threads
                self._room.release()
                link.close()

    def _receive(self, link: Connection) -> None:
        in_time = threading.Timer(_ARRIVES_S, cut_off, [link])
        in_time.daemon = True
        in_time.start()
        try:
            _limit_waiting(link, _STALLS_S)
            if not self.address.path:
                _send_at_once(link)
            deliver_challenge(link, self.address.key)
            answer_challenge(link, self.address.key)
            hello = _hello.decode(link.recv_bytes())
        except (*BROKEN, AssertionError, ValueError):  # (a stranger may say anything)
            link.close()
            return
        finally:
            in_time.cancel()
            self._room.release()
        self._arrived(link, hello)

    def close(self) -> None:
        """Let nobody in any more."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.close()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)


def cut_off(link: Connection) -> None:
    """End a link, also while a thread waits for it. Safe from any thread."""
    with contextlib.suppress(OSError), _socket_of(link) as of:
        of.shutdown(socket.SHUT_RDWR)


def _socket_of(link: Connection) -> socket.socket:
    """Return another handle of a link's socket, to be closed."""
    return socket.socket(fileno=os.dup(link.fileno()))


def _limit_waiting(link: Connection, seconds: int) -> None:
    """Limit how long to wait for the rest of a message, or for room to send; 0 for no limit."""
    with _socket_of(link) as of:
        limit = struct.pack("ll", seconds, 0)
        of.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        of.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _send_at_once(link: Connection) -> None:
    """Send small messages at once, and notice that the other host has gone."""
    with _socket_of(link) as of:
        of.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        of.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                of.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
