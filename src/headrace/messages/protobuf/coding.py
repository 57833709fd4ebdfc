"""From bytes in Protobuf to columns, and back.

Google's library parses each message, and writes it as it is written usually: so two members of a
``oneof``, keys that are there twice and messages in parts mean what they mean there. ptars then makes the
columns, without an object per field.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.messages.base import Unreadable
from headrace.messages.protobuf.schemas import Record, column_type, copied


class Coder:
    """Reads and writes some fields of a message.

    Args:
        message: the class of the message.
        record: its fields.
        written: whether to write.
    """

    def __init__(self, message: Any, record: Record, *, written: bool) -> None:
        import ptars
        from google.protobuf import descriptor_pool

        self._message = message
        self._kind = column_type(record, "read")
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(copied(record, written=written).SerializeToString())
        descriptor = pool.FindMessageTypeByName("headrace.M0")
        self._handler = ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)

    def decode(self, messages: list[bytes]) -> pa.StructArray:
        """Return messages as they are stored.

        Raises:
            Unreadable: for the first one that cannot be read.
        """
        if not messages:
            return pa.array([], self._kind)
        batch = self._handler.list_to_record_batch(self._usual(messages))
        found = batch.to_struct_array()
        return pa.StructArray.from_arrays(found.flatten(), fields=list(self._kind))

    def encode(self, rows: pa.StructArray) -> pa.Array:
        """Return the bytes of messages."""
        if not len(rows):
            return pa.array([], pa.binary())
        batch = pa.RecordBatch.from_struct_array(pa.concat_arrays([rows]))
        written = self._handler.record_batch_to_array(batch)
        return pa.array(self._usual(written.to_pylist()), pa.binary())

    def _usual(self, messages: list[bytes]) -> list[bytes]:
        """Return messages as they are written usually: maps in the order of their keys."""
        parse = self._message.FromString
        found = []
        for row, message in enumerate(messages):
            try:
                found.append(parse(message).SerializeToString(deterministic=True))
            except Exception as error:  # (its errors have several classes)
                raise Unreadable(row, f"it is not of its type: {error}") from None
        return found
