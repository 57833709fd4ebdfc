"""What the user's code raises: of whatever kind it is, it becomes an error with a place.

A handler that calls ``sys.exit`` must not end the process that runs it, nor one that raises what only an
event loop or a generator is to see. So code of others is called within ``except BaseException``, and what
has come from outside goes on as it is: see :func:`is_from_outside`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from headrace.errors import BadInput, HeadraceError, InvariantBroken, UserCodeError
from headrace.errors.printable import HIDDEN, hides_values

#: What calls code of others; a traceback without it begins with their own lines.
CALLERS = (
    "/headrace/tasks/",
    "/headrace/state/",
    "/headrace/sources/",
    "/headrace/sinks/",
    "/headrace/driver/sink_delivery.py",
    "/headrace/driver/source_polling.py",
    "/headrace/errors/user_code.py",
)


#: What to do about a source that raises.
SOURCE_REMEDY = (
    "mend the source, or what it reads from, and start again: nothing of the step was committed"
)


class FromOutside(BaseException):
    """Rises in a thread in which something is to end, and is no error of the code that it rises in."""


class _Process:
    """What is known of this process."""

    is_of_a_terminal = True


def has_no_terminal() -> None:
    """Say that nobody can interrupt this process by a key: what looks like that is the user's code."""
    _Process.is_of_a_terminal = False


def is_from_outside(error: BaseException) -> bool:
    """Say whether something is no error of the code that it has risen in: it is to go on as it is."""
    if isinstance(error, KeyboardInterrupt):  # (a signal's rises in the main thread)
        in_main = threading.current_thread() is threading.main_thread()
        return in_main and _Process.is_of_a_terminal
    return isinstance(error, FromOutside)


def goes_on(error: BaseException) -> bool:
    """Say whether an error that rose in the user's code is not a matter of that code."""
    return is_from_outside(error) or isinstance(error, InvariantBroken)


# -- what is said of it -----------------------------------------------------------------------


def words_of(error: BaseException) -> str:
    """Return what an error says of itself, if it can."""
    if isinstance(error, HeadraceError):
        return error.what
    return _made(error, str, "text")


def shown(value: Any) -> str:
    """Return a value as Python shows it, if it can."""
    return _made(value, repr, "representation")


def _made(value: Any, make: Any, what: str) -> str:
    try:
        text: str = make(value)
    except BaseException as error:
        if is_from_outside(error):
            raise
        return f"(a {type(value).__name__}, whose {what} cannot be made: {type(error).__name__})"
    return text


def said(error: BaseException) -> str:
    """Return an error's kind and text; the kind alone, if values are hidden."""
    return f"{_kind_of(error)}: {HIDDEN if hides_values() else words_of(error)}"


def _kind_of(error: BaseException) -> str:
    """Return what an error's class is called; a name that was made may hold a value, and is no name."""
    kind = type(error)
    if not hides_values():
        return kind.__name__
    return next((base.__name__ for base in kind.__mro__ if _is_named(base)), HIDDEN)


def _is_named(kind: type) -> bool:
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def own_traceback(error: BaseException, *, values: bool = True) -> str:
    """Return the user's own lines of a traceback: those above them are the engine's.

    Args:
        error: the error.
        values: whether to show what the error says of itself, too.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in CALLERS)]
    lines = traceback.format_list(own or frames[-1:])
    if values:
        lines += traceback.format_exception_only(error)
    return "".join(lines)


def _shown_cause(error: BaseException) -> BaseException | None:
    """Return what is shown as the cause of an error: nothing, if values are hidden."""
    return None if hides_values() else error


def whole_traceback(error: BaseException) -> str:
    """Return all of a traceback; the lines of code alone, if values are hidden."""
    if hides_values():
        return "".join(
            [*traceback.format_tb(error.__traceback__), f"{_kind_of(error)}: {HIDDEN}\n"]
        )
    return "".join(traceback.format_exception(error))


# -- what becomes of it -----------------------------------------------------------------------


def user_error(error: BaseException, place: str, remedy: str, what: str = "") -> UserCodeError:
    """Return what the user's code has raised, with their lines.

    Args:
        error: what rose.
        place: where.
        remedy: what is to be done.
        what: what failed by it, if that is not said by the place.
    """
    return UserCodeError(
        f"{what}: {said(error)}" if what else said(error),
        place=place,
        remedy=remedy,
        traceback_text=own_traceback(error, values=not hides_values()),
    )


def raise_again(error: BaseException, place: str, remedy: str, what: str = "") -> NoReturn:
    """Raise what has risen in the user's code, as an error with its place.

    Raises:
        BaseException: as it is, what is not a matter of that code, or says its place.
        BadInput: with its place, what was raised without one.
        UserCodeError: otherwise.
    """
    if goes_on(error) or (isinstance(error, UserCodeError | BadInput) and error.place):
        raise error
    if isinstance(error, BadInput):
        remedied = error.remedy or remedy
        raise BadInput(error.what, place=place, remedy=remedied, row=error.row) from error
    raise user_error(error, place, remedy, what) from _shown_cause(error)


@contextlib.contextmanager
def blamed(place: str, remedy: str) -> Iterator[None]:
    """Let what sources and sinks raise be errors that say whose they are.

    Raises:
        HeadraceError: what they raise on purpose, as it is; a ``UserCodeError`` of all else.
    """
    try:
        yield
    except BaseException as error:
        if is_from_outside(error) or isinstance(error, HeadraceError):
            raise
        raise user_error(error, place, remedy) from _shown_cause(error)
