"""The refusal of a command: what a decision raises when the command cannot be applied."""

from __future__ import annotations


class Refused(Exception):
    """A command is refused. Nothing has changed.

    The refusal becomes the answer to the command. It never leaves the coordinator and the driver.

    Attributes:
        why: why it is refused, as the user reads it.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
