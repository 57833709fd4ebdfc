"""The packages of the extras ``metrics`` and ``dashboard``, which may not be installed."""

from __future__ import annotations

from headrace.errors.packages import check_packages

EXTRA = "metrics"
_PACKAGES = ("prometheus_client", "starlette", "uvicorn")


def check_installed(command: str = "headrace metrics", extra: str = EXTRA) -> None:
    """Check that the packages of the extra can be imported.

    Args:
        command: the command that needs them.
        extra: the extra that brings them.

    Raises:
        PipelineError: for the first one that cannot.
    """
    check_packages(command, _PACKAGES, extra=extra)
