"""How records are written in the bytes of messages, as those of Kafka."""

from headrace.messages.base import MessageFormat, Unreadable
from headrace.messages.lines import Csv, Json
from headrace.messages.plain import Raw, Text

__all__ = ["Csv", "Json", "MessageFormat", "Raw", "Text", "Unreadable"]
