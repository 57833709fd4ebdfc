"""Errors of the user's code: whatever it raises becomes an error with a place.

A handler that calls ``sys.exit`` must not end the process that runs it. Nor must one that raises an
exception meant for an event loop or a generator. So user code is called under a handler for
``BaseException``. Exceptions that come from outside pass unchanged: see :func:`is_from_outside`.
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

#: The modules that call user code. Without their lines, a traceback begins with the user's own.
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
    "fix the source, or what it reads from, and start again: nothing of the step was committed"
)


class FromOutside(BaseException):
    """Raised in a thread to end something there. It is not an error of the code it interrupts."""


class _Process:
    """What is known about this process."""

    is_of_a_terminal = True


def has_no_terminal() -> None:
    """Declare that nobody can interrupt this process from a keyboard.

    From then on, a ``KeyboardInterrupt`` counts as raised by the user's code.
    """
    _Process.is_of_a_terminal = False


def is_from_outside(error: BaseException) -> bool:
    """Return whether an exception is not an error of the code it was raised in, and must pass."""
    if isinstance(error, KeyboardInterrupt):  # (a signal raises it in the main thread)
        in_main = threading.current_thread() is threading.main_thread()
        return in_main and _Process.is_of_a_terminal
    return isinstance(error, FromOutside)


def goes_on(error: BaseException) -> bool:
    """Return whether an exception in the user's code must pass, as it is not that code's error."""
    return is_from_outside(error) or isinstance(error, InvariantBroken)


# -- how it is described ----------------------------------------------------------------------


def words_of(error: BaseException) -> str:
    """Return the text of an error, or a replacement if the error cannot make one."""
    if isinstance(error, HeadraceError):
        return error.what
    return _made(error, str, "text")


def shown(value: Any) -> str:
    """Return the ``repr`` of a value, or a replacement if the value cannot make one."""
    return _made(value, repr, "representation")


def _made(value: Any, make: Any, what: str) -> str:
    try:
        text: str = make(value)
    except BaseException as error:
        if is_from_outside(error):
            raise
        return f"(a {type(value).__name__}, whose {what} cannot be made: {type(error).__name__})"
    return text


def error_text(error: BaseException) -> str:
    """Return an error's kind and text; only the kind if values are hidden."""
    return f"{_kind_of(error)}: {HIDDEN if hides_values() else words_of(error)}"


def _kind_of(error: BaseException) -> str:
    """Return the name of an error's class.

    If values are hidden, the name of a class that was made at run time is not used, because it may
    hold a value. Its nearest base with a name of its own is used instead.
    """
    kind = type(error)
    if not hides_values():
        return kind.__name__
    return next((base.__name__ for base in kind.__mro__ if _is_named(base)), HIDDEN)


def _is_named(kind: type) -> bool:
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def own_traceback(error: BaseException, *, values: bool = True) -> str:
    """Return the user's own lines of a traceback, without those of the engine.

    Args:
        error: the error.
        values: whether to include the kind and text of the error.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in CALLERS)]
    lines = traceback.format_list(own or frames[-1:])
    if values:
        lines += traceback.format_exception_only(error)
    return "".join(lines)


def _shown_cause(error: BaseException) -> BaseException | None:
    """Return the cause of an error that is shown; None if values are hidden."""
    return None if hides_values() else error


def whole_traceback(error: BaseException) -> str:
    """Return a whole traceback; without the text of the error if values are hidden."""
    if hides_values():
        return "".join(
            [*traceback.format_tb(error.__traceback__), f"{_kind_of(error)}: {HIDDEN}\n"]
        )
    return "".join(traceback.format_exception(error))


# -- what it is turned into -------------------------------------------------------------------


def user_error(error: BaseException, place: str, remedy: str, what: str = "") -> UserCodeError:
    """Return the error for an exception of the user's code, with the user's own lines.

    Args:
        error: the exception.
        place: where it was raised.
        remedy: what the user can do about it.
        what: what failed because of it, if the place does not say so.
    """
    return UserCodeError(
        f"{what}: {error_text(error)}" if what else error_text(error),
        place=place,
        remedy=remedy,
        traceback_text=own_traceback(error, values=not hides_values()),
    )


def raise_again(error: BaseException, place: str, remedy: str, what: str = "") -> NoReturn:
    """Raise an exception of the user's code again, as an error with its place.

    Raises:
        BaseException: unchanged, if it is not an error of that code, or already has a place.
        BadInput: with the place, if it was raised without one.
        UserCodeError: otherwise.
    """
    if goes_on(error) or (isinstance(error, UserCodeError | BadInput) and error.place):
        raise error
    if isinstance(error, BadInput):
        raise error.at(place, error.remedy or remedy) from error
    raise user_error(error, place, remedy, what) from _shown_cause(error)


@contextlib.contextmanager
def blamed(place: str, remedy: str) -> Iterator[None]:
    """Turn what sources and sinks raise into errors that say where they come from.

    Raises:
        HeadraceError: unchanged, if they raise one on purpose.
        UserCodeError: for anything else.
    """
    try:
        yield
    except BaseException as error:
        if is_from_outside(error) or isinstance(error, HeadraceError):
            raise
        raise user_error(error, place, remedy) from _shown_cause(error)
