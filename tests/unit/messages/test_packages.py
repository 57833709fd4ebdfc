"""A format whose package is not installed says which extra has it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from google.protobuf import timestamp_pb2

from headrace.errors import PipelineError
from headrace.messages import Avro, Protobuf, Registry


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("fastavro", lambda: Avro('"long"')),
        ("pyruhvro", lambda: Avro('"long"')),
        ("ptars", lambda: Protobuf(timestamp_pb2.Timestamp)),
        ("confluent_kafka.schema_registry", lambda: Registry("http://a").by_id(1)),
        ("confluent_kafka.schema_registry", lambda: Registry("http://a").register("s", "AVRO", "")),
    ],
)
def test_the_remedy_names_the_extra(
    package: str, make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PipelineError, match="needs a package that is not there") as caught:
        make()
    assert caught.value.remedy == 'pip install "headrace[kafka]"'
