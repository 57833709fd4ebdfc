"""The runner that executes steps as Spark jobs. Its public names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.runners.spark.runner import SparkRunner as SparkRunner
    from headrace.session.settings import SESSION_SETTINGS as SESSION_SETTINGS

__all__ = ["SESSION_SETTINGS", "SparkRunner"]


def __getattr__(name: str) -> Any:
    # Python workers import this package, too, and do not need the runner.
    if name == "SESSION_SETTINGS":
        from headrace.session import settings

        return settings.SESSION_SETTINGS
    if name == "SparkRunner":
        from headrace.runners.spark import runner

        return runner.SparkRunner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
