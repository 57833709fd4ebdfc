"""Packages that a format of messages needs, and that may not be installed."""

from __future__ import annotations

from headrace.errors.packages import check_packages


def check_installed(format: str, *packages: str) -> None:
    """Check that packages can be imported.

    Raises:
        PipelineError: for the first one that cannot.
    """
    check_packages(f"messages.{format}", packages, extra="kafka")
