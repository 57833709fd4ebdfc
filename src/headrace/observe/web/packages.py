"""The packages of the extra ``metrics``, which may not be installed."""

from __future__ import annotations

import importlib

from headrace.errors import PipelineError

EXTRA = "metrics"
_PACKAGES = ("prometheus_client", "starlette", "uvicorn")


def check_installed() -> None:
    """Check that the packages of the extra can be imported.

    Raises:
        PipelineError: for the first one that cannot.
    """
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as missing:
            raise PipelineError(
                f"headrace metrics needs a package that is not there: {missing}",
                remedy=f'pip install "headrace[{EXTRA}]"',
            ) from None
