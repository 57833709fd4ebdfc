"""Texts of a file of SQL with their places, and the options of its tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """A text, and where it stands in the file. Rows of a query may wait until they are final."""

    text: str
    at: int
    final: bool = False


@dataclass(frozen=True)
class Options:
    """What stands behind WITH: names and values, each with its place."""

    values: dict[str, Text]
    at: int
