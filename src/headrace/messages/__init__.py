"""How records are written in the bytes of messages, as those of Kafka."""

from headrace.messages.avro import Avro
from headrace.messages.base import MessageFormat, Unreadable
from headrace.messages.debezium import Debezium
from headrace.messages.debezium_transactions import DebeziumTransactions
from headrace.messages.lines import Csv, Json
from headrace.messages.plain import Raw, Text
from headrace.messages.protobuf import Protobuf
from headrace.messages.registry import Registry

__all__ = [
    "Avro",
    "Csv",
    "Debezium",
    "DebeziumTransactions",
    "Json",
    "MessageFormat",
    "Protobuf",
    "Raw",
    "Registry",
    "Text",
    "Unreadable",
]
