"""What Spark's UI says about the jobs of a pipeline: a description, and a tag to find them by."""

from __future__ import annotations

from typing import Any


class JobNames:
    """Names the jobs of a pipeline.

    Args:
        context: the SparkContext.
        pipeline: the pipeline's name.
    """

    def __init__(self, context: Any, pipeline: str) -> None:
        self._sc = context
        self._pipeline = pipeline

    @property
    def tag(self) -> str:
        """The tag of all jobs of the pipeline."""
        return f"headrace-{self._pipeline}"

    def begin_thread(self, group: str, what: str) -> None:
        """Name the jobs that this thread starts from now on, and put them into a group."""
        self._sc.setJobGroup(group, f"{self._pipeline}: {what}", interruptOnCancel=True)
        self._sc.addJobTag(self.tag)

    def describe(self, what: str) -> None:
        """Say what the next jobs of this thread are. One call to the JVM, about 0.3 ms."""
        self._sc.setJobDescription(f"{self._pipeline}: {what}")
