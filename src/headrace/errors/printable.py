"""What is printed of data, and of storage: escaped, bounded, without secrets, and hidden on request.

A terminal obeys what it is sent, a spreadsheet computes what begins with an equals sign, and a log keeps
what it is given. So whatever comes from records, names or storage goes through here before it is
printed or becomes part of an error.
"""

from __future__ import annotations

import os
import re

#: The variable of the environment that lets errors and commands show no values: ``1`` for yes.
HIDE = "HEADRACE_HIDE_VALUES"
#: What stands in the place of a value.
HIDDEN = "(hidden)"
#: The longest message, and the longest cell or line of a message, in characters.
MOST_MESSAGE = 8_000
MOST_CELL = 1_000

# Controls (C0 without tab and newline, delete, C1), what turns the direction of a line, invisible
# characters and tags, line separators, and halves of characters. Joiners stay: scripts need them.
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
    r"""Return a text that a terminal shows and does not obey: what it would obey, as escapes.

    >>> printable("red: \x1b[31m")
    'red: \\x1b[31m'

    Args:
        text: the text; its lines and tabs stay.
        most: how many characters are kept; of longer ones the beginning and the end. None for all.
    """
    return _UNPRINTABLE.sub(_escaped, text if most is None else shortened(text, most))


def one_line(text: str, most: int = MOST_CELL) -> str:
    """Return the same as one line, for a cell of a table."""
    return _LAYOUT.sub(_escaped, printable(text, most))


def json_printable(text: str) -> str:
    """Return JSON in which nothing is left that a terminal obeys. It means the same."""
    return _UNPRINTABLE.sub(_escaped_in_json, text)


def shortened(text: str, most: int) -> str:
    """Return the beginning and the end of a text that is longer than so many characters."""
    if len(text) <= most:
        return text
    kept = most - most // 4, most // 4
    return f"{text[: kept[0]]} … ({len(text):,} characters) … {text[len(text) - kept[1] :]}"


def without_secrets(text: str) -> str:
    """Return a text without the passwords of its addresses and settings.

    >>> without_secrets("cannot reach https://ann:secret@host/x?token=abc")
    'cannot reach https://***@host/x?token=***'
    """
    return _SECRET.sub(r"\1***", _CREDENTIALS.sub(r"\1***@", text))


def message(text: str, most: int = MOST_MESSAGE) -> str:
    """Return a part of an error as it may be shown and kept."""
    return printable(without_secrets(shortened(text, most)))


def without_key(place: str) -> str:
    """Return a place without the key, value or item that it names."""
    return _KEY.sub(rf"\1 {HIDDEN}", place)


def hides_values() -> bool:
    """Say whether no values are to be shown."""
    return os.environ.get(HIDE, "") not in ("", "0")


def hide_values() -> None:
    """Show no values from now on: in this process, and in those that it starts."""
    os.environ[HIDE] = "1"


def csv_cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula: with an apostrophe where it would."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _escaped_in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
