"""The formats in which a source can read messages."""

from __future__ import annotations

from typing import Literal

from headrace import messages
from headrace.errors import PipelineError
from headrace.messages.base import MessageFormat
from headrace.sources.kafka.decoding import JsonReader

FormatName = Literal["json", "text", "bytes"]


def format_of(given: str | MessageFormat, option: str) -> MessageFormat:
    """Return the format that a user gave, in the form in which it reads.

    Raises:
        PipelineError: if it is none.
    """
    if isinstance(given, MessageFormat):
        return JsonReader() if given.name == "json" else given
    if given == "json":
        return JsonReader()
    if given == "text":
        return messages.Text()
    if given == "bytes":
        return messages.Raw()
    raise PipelineError(
        f"{option}={given!r} is no format of messages",
        remedy='use "json", "text" or "bytes", or one of headrace.messages, such as Avro(…)',
    )
