"""Messages in Protocol Buffers."""

from headrace.messages.protobuf.format import Protobuf

__all__ = ["Protobuf"]
