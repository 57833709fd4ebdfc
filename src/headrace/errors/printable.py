"""Makes texts from data and storage safe to print: escaped, bounded, and without secrets.

A terminal obeys what it is sent, a spreadsheet computes what begins with an equals sign, and a log
keeps what it is given. So whatever comes from records, names or storage passes through this module
before it is printed or becomes part of an error. Values are hidden on request.
"""

from __future__ import annotations

import os
import re

#: The environment variable that hides values in errors and commands: ``1`` for yes.
HIDE = "HEADRACE_HIDE_VALUES"
#: Stands in the place of a hidden value.
HIDDEN = "(hidden)"
#: The longest message, and the longest table cell or line of a message, in characters.
MOST_MESSAGE = 8_000
MOST_CELL = 1_000

# Control characters (C0 without tab and newline, delete, C1), characters that change the direction
# of a line, invisible characters and tags, line separators, and surrogates. Joiners stay, because
# some scripts need them.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_LAYOUT = re.compile("[\t\n]")
_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#@'\"]+@")
_SECRET = re.compile(
    r"((?:password|passwd|pwd|secret|token|signature|credential|api_?key|access_?key|account_?key)"
    r"[\w-]*(?:=|[\"']\s*:\s*)[\"']?)([^\s&\"',;)}]+)",
    re.IGNORECASE,
)
_KEY = re.compile(r"\b(key|value|item \d+:) .*", re.DOTALL)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str, most: int | None = None) -> str:
    r"""Return a text that a terminal shows and does not obey: control characters become escapes.

    >>> printable("red: \x1b[31m")
    'red: \\x1b[31m'

    Args:
        text: the text. Its lines and tabs stay.
        most: how many characters to keep. Of a longer text, the beginning and the end are kept.
            None to keep all.
    """
    return _UNPRINTABLE.sub(_escaped, text if most is None else shortened(text, most))


def one_line(text: str, most: int = MOST_CELL) -> str:
    """Return a printable text as one line, for a cell of a table."""
    return _LAYOUT.sub(_escaped, printable(text, most))


def json_printable(text: str) -> str:
    """Return JSON that means the same, and in which a terminal obeys nothing."""
    return _UNPRINTABLE.sub(_escaped_in_json, text)


def shortened(text: str, most: int) -> str:
    """Return a text; only its beginning and end if it has more than ``most`` characters."""
    if len(text) <= most:
        return text
    kept = most - most // 4, most // 4
    return f"{text[: kept[0]]} … ({len(text):,} characters) … {text[len(text) - kept[1] :]}"


def without_secrets(text: str) -> str:
    """Return a text without the passwords in its addresses and settings.

    >>> without_secrets("cannot reach https://ann:secret@host/x?token=abc")
    'cannot reach https://***@host/x?token=***'
    """
    return _SECRET.sub(r"\1***", _CREDENTIALS.sub(r"\1***@", text))


def message(text: str, most: int = MOST_MESSAGE) -> str:
    """Return a part of an error in a form that may be shown and kept."""
    return printable(without_secrets(shortened(text, most)))


def without_key(place: str) -> str:
    """Return a place without the key, value or item that it names."""
    return _KEY.sub(rf"\1 {HIDDEN}", place)


def hides_values() -> bool:
    """Return whether values are to be hidden."""
    return os.environ.get(HIDE, "") not in ("", "0")


def hide_values() -> None:
    """Hide values from now on, in this process and in those that it starts."""
    os.environ[HIDE] = "1"


def csv_cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula, with an apostrophe if needed."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _escaped_in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
