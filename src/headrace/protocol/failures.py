"""Errors in transit: conversion to the form in which a report carries them, and back."""

from __future__ import annotations

from typing import Any

from headrace.errors import HeadraceError, InvariantBroken, UserCodeError
from headrace.protocol.plan import Failure


def failure_of(error: HeadraceError) -> Failure:
    """Return an error in the form in which a report carries it."""
    text = error.traceback_text if isinstance(error, UserCodeError) else ""
    return Failure(type(error).__name__, error.what, error.place, error.remedy, text)


def error_of(failure: Failure) -> HeadraceError:
    """Return the error that a report carries."""
    from headrace import errors

    kind: Any = getattr(errors, failure.kind, InvariantBroken)
    if kind is UserCodeError:
        return UserCodeError(
            failure.what,
            place=failure.place,
            remedy=failure.remedy,
            traceback_text=failure.traceback,
        )
    what = f"{failure.what}\n{failure.traceback}" if failure.traceback else failure.what
    error: HeadraceError = kind(what, place=failure.place, remedy=failure.remedy)
    return error
