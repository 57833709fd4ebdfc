"""Messages in Avro."""

from headrace.messages.avro.format import Avro

__all__ = ["Avro"]
