"""Packages that a format of messages needs, and that may not be installed."""

from __future__ import annotations

import importlib

from headrace.errors import PipelineError


def check_installed(format: str, *packages: str) -> None:
    """Check that packages can be imported.

    Raises:
        PipelineError: for the first one that cannot.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as missing:
            raise PipelineError(
                f"messages.{format} needs a package that is not there: {missing}",
                remedy='pip install "headrace[kafka]"',
            ) from None
