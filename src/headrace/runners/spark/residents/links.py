"""Links between the driver and resident workers: sockets on which both have proved who they are.

On the driver's host they are Unix sockets in a directory that only this user can read. Elsewhere they
are of TCP. Both ends prove that they know a key, which travels to the residents with their code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)

import msgspec

from headrace.runners.spark.residents.orders import Hello
from headrace.runners.spark.spool import make_directory

log = logging.getLogger("headrace.spark")

#: What may happen to a link whose other end has gone.
BROKEN = (OSError, EOFError, AuthenticationError, msgspec.DecodeError)
_KEY_BYTES = 32
#: How long the driver waits for the rest of a message, or for room to send, in whole seconds.
_STALLS_S = 3
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
        link = Client(address.path, "AF_UNIX")
    else:
        link = Client((address.host, address.port), "AF_INET")
        _without_delay(link)
    answer_challenge(link, address.key)
    deliver_challenge(link, address.key)
    link.send_bytes(msgspec.msgpack.encode(hello))
    return link


class Entrance:
    """Where residents arrive.

    Args:
        host: the address at which residents on other hosts reach the driver; None if all are on its
            host.
        arrived: called in a thread with each link, and what the resident has said.

    Attributes:
        address: what residents need in order to come.
    """

    def __init__(self, host: str | None, arrived: Callable[[Connection, Hello], None]) -> None:
        self._arrived = arrived
        self._directory = ""
        key = os.urandom(_KEY_BYTES)
        if host is None:
            self._directory = make_directory(None)
            path = os.path.join(self._directory, "residents")
            self._listener = Listener(path, "AF_UNIX", backlog=64)
            self.address = Address(path, "", 0, key)
        else:
            self._listener = Listener((host, 0), "AF_INET", backlog=64)
            bound = self._listener.address
            assert isinstance(bound, tuple)
            self.address = Address("", host, int(bound[1]), key)
        self._closed = False
        threading.Thread(target=self._accept, name="headrace-entrance", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                link = self._listener.accept()
            except OSError:
                continue  # it is closed, or the other end has gone already
            threading.Thread(
                target=self._receive, args=(link,), name="headrace-arrival", daemon=True
            ).start()

    def _receive(self, link: Connection) -> None:
        try:
            _with_time_limit(link)
            if not self.address.path:
                _without_delay(link)
            deliver_challenge(link, self.address.key)
            answer_challenge(link, self.address.key)
            hello = _hello.decode(link.recv_bytes())
        except BROKEN:
            link.close()
            return
        self._arrived(link, hello)

    def close(self) -> None:
        """Let nobody in any more."""
        self._closed = True
        with contextlib.suppress(OSError):  # wakes the thread that waits for the next
            if self.address.path:
                Client(self.address.path, "AF_UNIX").close()
            else:
                Client((self.address.host, self.address.port), "AF_INET").close()
        self._listener.close()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)


def _with_time_limit(link: Connection) -> None:
    """Do not wait for ever for a resident that has stopped in the middle of a message."""
    with socket.socket(fileno=os.dup(link.fileno())) as of:
        limit = struct.pack("ll", _STALLS_S, 0)
        of.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        of.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _without_delay(link: Connection) -> None:
    """Send small messages at once, and notice that the other host has gone."""
    with socket.socket(fileno=os.dup(link.fileno())) as of:
        of.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        of.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                of.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
