"""The token that a request must show to a server which others than this machine can reach."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import PipelineError
from headrace.observe.web.addresses import Address

#: 128 bits in base64, which needs the fewest characters of the usual ways to write them.
_LEAST = 22
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_REMEDY = "write one with: openssl rand -hex 32 > FILE"


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        PipelineError: if there is none, or a weak one.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(
            f"the token file cannot be read: {error}", place=str(path), remedy=_REMEDY
        ) from None
    if len(token) < _LEAST or not _TOKEN.fullmatch(token):
        raise PipelineError(
            f"a token has {_LEAST} characters or more, letters, digits and . _ ~ + / = -",
            place=str(path),
            remedy=_REMEDY,
        )
    return token


def check_reach(address: Address, token: str, option: str = "--token-file") -> None:
    """Check that only this machine reaches a server that wants no token.

    Raises:
        PipelineError: if others do.
    """
    if not token and not address.is_loopback:
        raise PipelineError(
            f"other machines reach {address.host}, so a token is needed",
            remedy=f"give one with {option} FILE, or listen on 127.0.0.1",
        )
