"""Packages of an extra, which may not be installed."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from headrace.errors import PipelineError


def check_packages(user: str, packages: Iterable[str], *, extra: str) -> None:
    """Check that packages can be imported.

    Args:
        user: what needs them.
        packages: their names, as they are imported.
        extra: the extra of Headrace that installs them.

    Raises:
        PipelineError: for the first one that cannot.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as missing:
            raise PipelineError(
                f"{user} needs a package that is not there: {missing}",
                remedy=f'pip install "headrace[{extra}]"',
            ) from None
