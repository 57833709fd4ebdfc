"""The packages of the extra ``metrics``, which may not be installed."""

from __future__ import annotations

from headrace.errors.packages import check_packages

EXTRA = "metrics"
_PACKAGES = ("prometheus_client", "starlette", "uvicorn")


def check_installed() -> None:
    """Check that the packages of the extra can be imported.

    Raises:
        PipelineError: for the first one that cannot.
    """
    check_packages("headrace metrics", _PACKAGES, extra=EXTRA)
