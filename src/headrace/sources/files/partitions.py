"""The partition that a file's records belong to, derived from the file's name."""

from __future__ import annotations

import re
from collections.abc import Sized

from headrace.errors import BadInput, PipelineError
from headrace.eventtime.watermark import check_number_of_partitions


class PartitionOf:
    """Derives the partition of a file from its name.

    Args:
        partition: ``"file"``, ``"directory"``, or a regular expression whose first group (or whole
            match, if it has no group) is the partition; None if all files are in one partition.
        place: the place to name in an error.

    Raises:
        PipelineError: for anything else.
    """

    def __init__(self, partition: str | None, *, place: str) -> None:
        self._by = partition
        self._place = place
        self._pattern: re.Pattern[str] | None = None
        if partition in (None, "file", "directory"):
            return
        try:
            self._pattern = re.compile(str(partition))
        except re.error as error:
            raise PipelineError(
                f"partition={partition!r} is not a pattern: {error}",
                place=place,
                remedy='say "file", "directory", or a regular expression such as r"host=([^/]+)/"',
            ) from error

    @property
    def is_given(self) -> bool:
        """Whether there is more than one partition."""
        return self._by is not None

    def __call__(self, name: str) -> str:
        """Return the partition of a file.

        Raises:
            BadInput: for a file whose name gives none.
        """
        if self._by is None:
            return ""
        if self._by == "file":
            return name
        if self._by == "directory":
            return name.rpartition("/")[0] or "."
        assert self._pattern is not None
        found = self._pattern.search(name)
        partition: str | None = found and found[1 if self._pattern.groups else 0]
        if not partition:
            raise BadInput(
                f"{name!r} is of no partition: its name does not match {self._by!r}",
                place=self._place,
                remedy="give partition= a pattern that all names match, or take the file away",
            )
        return partition

    def check(self, parts: Sized) -> None:
        """Check that there are not too many partitions.

        Raises:
            PipelineError: if there are too many.
        """
        check_number_of_partitions(len(parts), self._place)
