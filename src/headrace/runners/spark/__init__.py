"""The runner that executes steps as Spark jobs. Its public names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.runners.spark.runner import SESSION_SETTINGS as SESSION_SETTINGS
    from headrace.runners.spark.runner import SparkRunner as SparkRunner

__all__ = ["SESSION_SETTINGS", "SparkRunner"]


def __getattr__(name: str) -> Any:
    # Python workers import this package, too, and do not need the runner.
    if name in __all__:
        from headrace.runners.spark import runner

        return getattr(runner, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
