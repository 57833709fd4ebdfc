"""The address on which the server listens, and the hosts for which it answers."""

from __future__ import annotations

import ipaddress
import re
import socket

import msgspec

from headrace.errors import PipelineError

#: The names of this machine for itself.
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ADDRESS = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d{1,5})")
_MOST_PORT = 65_535


class Address(msgspec.Struct, frozen=True):
    """A host and a port.

    Attributes:
        host: a name or an address.
        port: the port; 0 for any that is free.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """The address as the beginning of a URL."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def address_of(text: str) -> Address:
    """Return an address that is written as HOST:PORT, or as [HOST]:PORT for IPv6.

    Raises:
        PipelineError: if it is not.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > _MOST_PORT:
        raise PipelineError(
            f"{text!r} is not HOST:PORT", remedy="say for instance 127.0.0.1:9464 or [::1]:9464"
        )
    return Address((found[1] or found[2]).lower(), int(found[3]))


def host_name(header: str) -> str:
    """Return the host in a ``Host`` header, without its port.

    >>> host_name("LocalHost:9464"), host_name("[::1]:9464")
    ('localhost', '::1')
    """
    bare = header.strip().lower()
    if bare.startswith("["):
        return bare[1:].partition("]")[0]
    return bare.partition(":")[0].rstrip(".")


def hosts_of(address: Address, more: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the hosts for which a server answers.

    A browser that was led here under another name is refused, so that no page of another site can
    read what the server shows (DNS rebinding).

    Args:
        address: where it listens.
        more: names that the user adds.
    """
    return LOOPBACK_NAMES | {address.host} | {host_name(name) for name in more}


def listening_socket(address: Address, option: str = "--listen") -> socket.socket:
    """Return a socket that listens.

    Raises:
        PipelineError: if it cannot, for instance because another process does.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except (OSError, UnicodeError) as error:
        raise PipelineError(
            f"cannot listen on {address.host}:{address.port}: {getattr(error, 'strerror', None) or error}",
            remedy=f"choose another address with {option} HOST:PORT, or port 0 for a free one",
        ) from None
