"""The gate for names: no store touches a name that could lead out of it.

Names come from manifests, commands, listings and inboxes, which other processes have written. So
each operation of each store checks its name first. :class:`headrace.storage.base.Store` wraps the
operations of every subclass, including those that users write.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from headrace.errors import Damaged, UnsafeName

#: Longest part of a name, in characters. A local store needs some of the 255 for temporary names.
MOST_PART = 180
#: Longest name, in characters.
MOST_NAME = 512
#: Longest file, in bytes.
MOST_BYTES = 1 << 50
_PART = rf"[A-Za-z0-9_=+@~-][A-Za-z0-9_.=+@~-]{{0,{MOST_PART - 1}}}"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")
#: The name of a temporary file: it has the name to be created in it, and the process.
_ASIDE = re.compile(r"\.(.+)\.[0-9a-f]{16}-\d+-\d+\.tmp")
#: How much of a refused name is shown.
_SHOWN = 80

Operation = TypeVar("Operation", bound=Callable[..., Any])


def is_name(name: object) -> bool:
    """Return whether something is a name that lies within a store."""
    return isinstance(name, str) and len(name) <= MOST_NAME and _NAME.fullmatch(name) is not None


def check_name(name: object) -> None:
    """Check that a name lies within its store.

    Raises:
        UnsafeName: for a name that is empty, absolute, too long, or has a part that is hidden or
            leads upwards, or a character that is not a letter, a digit or one of ``_.=+@~-``.
    """
    if not is_name(name):
        raise _unsafe(name, "is not a name in a storage")


def check_prefix(prefix: object) -> None:
    """Check the prefix of a listing: a name, a beginning of one, or nothing.

    Raises:
        UnsafeName: as :func:`check_name` does.
    """
    good = isinstance(prefix, str) and len(prefix) <= MOST_NAME and _PREFIX.fullmatch(prefix)
    if not good:
        raise _unsafe(prefix, "is not a beginning of a name in a storage")


def name_to_be(aside: str) -> str:
    """Return the name for which a temporary file was written; "" for any other file."""
    found = _ASIDE.fullmatch(aside)
    return "" if found is None else found[1]


def leads_out(name: str, place: str) -> UnsafeName:
    """Return the error for a name that leads out of its directory through a symbolic link."""
    return _unsafe(name, "leads out of the storage by a symbolic link", place)


def _unsafe(name: object, what: str, place: str = "") -> UnsafeName:
    shown = ascii(name) if isinstance(name, str) else f"({type(name).__name__})"
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}… ({len(str(name))} characters)"
    return UnsafeName(
        f"{shown} {what}",
        place=place,
        remedy="nothing was read, written or deleted under it; find out who wrote it into the storage, "
        "and restore the file that names it from a copy",
    )


def _of_name(operation: Operation) -> Operation:
    @functools.wraps(operation)
    def checked(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        check_name(name)
        return operation(self, name, *args, **kwargs)

    return checked  # type: ignore[return-value]


def _of_range(operation: Operation) -> Operation:
    @functools.wraps(operation)
    def checked(self: Any, name: str, offset: int = 0, length: int | None = None) -> Any:
        check_name(name)
        if not 0 <= offset <= MOST_BYTES or (length is not None and not 0 <= length <= MOST_BYTES):
            raise Damaged(
                f"{length} bytes from byte {offset} on are not a range of {name}",
                remedy="restore the file that says so from a copy of the storage",
            )
        return operation(self, name, offset, length)

    return checked  # type: ignore[return-value]


def _of_prefix(operation: Operation) -> Operation:
    @functools.wraps(operation)
    def checked(self: Any, prefix: str) -> Any:
        check_prefix(prefix)
        # (others are not ours, and nothing can be done under them)
        return [name for name in operation(self, prefix) if is_name(name)]

    return checked  # type: ignore[return-value]


def _of_files(operation: Operation) -> Operation:
    @functools.wraps(operation)
    def checked(self: Any, files: Iterable[str]) -> Any:
        for name in files:
            check_name(name)
        return operation(self, files)

    return checked  # type: ignore[return-value]


_GATES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("create", "write", "settle", "delete"), _of_name),
    "read": _of_range,
    "list": _of_prefix,
    "write_all": _of_files,
}


def gate(store: type) -> None:
    """Make a class of stores check all names, by wrapping the operations that it defines."""
    for operation, gated in _GATES.items():
        if operation in store.__dict__:
            setattr(store, operation, gated(store.__dict__[operation]))
