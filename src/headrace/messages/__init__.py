"""How records are written in the bytes of messages, as those of Kafka."""

from headrace.messages.base import MessageFormat, Unreadable, Wanted
from headrace.messages.plain import Raw, Text

__all__ = ["MessageFormat", "Raw", "Text", "Unreadable", "Wanted"]
