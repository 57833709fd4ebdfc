"""How records are written in the bytes of messages, as those of Kafka."""

from headrace.messages.base import MessageFormat, Unreadable, Wanted

__all__ = ["MessageFormat", "Unreadable", "Wanted"]
