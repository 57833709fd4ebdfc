"""A registry of schemas: what it gives, what it refuses, and what it never shows."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, NotFound, PipelineError, StorageDenied, StorageError
from headrace.messages import Registry, Unreadable, wire
from tests.unit.messages.refusing_server import answering

SECRET = "hunter22"
LONG = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]})
TEXT = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]})
_NUMBERS = itertools.count()
#: Nothing is tried twice.
ONCE = {"max.retries": 0}


def subject() -> str:
    return f"topic-{next(_NUMBERS)}-value"


def test_a_schema_is_registered_once_and_found_by_its_number(registry_url: str) -> None:
    registry, name = Registry(registry_url), subject()
    number = registry.register(name, "AVRO", LONG)
    assert registry.register(name, "AVRO", LONG) == number
    found = Registry(registry_url).by_id(number)
    assert (found.kind, json.loads(found.text)) == ("AVRO", json.loads(LONG))
    assert registry.newest(name).id == number


def test_the_newest_schema_is_the_last_that_was_registered(registry_url: str) -> None:
    registry, name = Registry(registry_url), subject()
    registry.register(name, "AVRO", LONG)
    second = registry.register(name, "AVRO", TEXT)
    assert registry.newest(name).id == second


def test_what_is_not_there_is_said(registry_url: str) -> None:
    registry = Registry(registry_url)
    with pytest.raises(NotFound, match="no schema 123456"):
        registry.by_id(123456)
    with pytest.raises(NotFound, match="no schema of 'nobody-value'"):
        registry.newest("nobody-value")


def test_without_auto_register_only_known_schemas_are_written(registry_url: str) -> None:
    name = subject()
    strict = Registry(registry_url, auto_register=False)
    with pytest.raises(NotFound, match=f"not one of '{name}'"):
        strict.register(name, "AVRO", LONG)
    number = Registry(registry_url).register(name, "AVRO", LONG)
    assert strict.register(name, "AVRO", LONG) == number


def test_a_schema_that_does_not_go_with_the_one_before_it_is_refused(registry_url: str) -> None:
    registry, name = Registry(registry_url), subject()
    registry.register(name, "AVRO", LONG)
    registry._requested("", lambda client: client.set_compatibility(name, "BACKWARD"))
    with pytest.raises(PipelineError, match=f"the schema of '{name}' cannot be registered"):
        registry.register(name, "AVRO", TEXT)


def test_a_registry_that_is_away_is_an_error_with_its_place() -> None:
    with pytest.raises(StorageError, match=r"at: the registry at http://127\.0\.0\.1:1"):
        Registry("http://127.0.0.1:1", ONCE).by_id(1)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, StorageDenied), (403, StorageDenied), (500, StorageError)]
)
def test_no_error_shows_a_secret(status: int, kind: type[HeadraceError]) -> None:
    with answering(status, f"ann may not, with {SECRET}") as url:
        given = {**ONCE, "basic.auth.user.info": f"ann:{SECRET}"}
        for registry in (
            Registry(url, given),
            Registry(url.replace("http://", f"http://ann:{SECRET}@"), ONCE),
        ):
            with pytest.raises(kind) as caught:
                registry.by_id(1)
            assert SECRET not in str(caught.value) + repr(caught.value) + repr(registry)


def test_a_secret_may_come_from_a_function_and_is_then_in_no_pickle() -> None:
    seen = []
    with answering(404, "not found", seen) as url:
        registry = Registry(url, {**ONCE, "basic.auth.user.info": user_and_password})
        pickled = pickle.dumps(registry)
        assert SECRET.encode() not in pickled
        with pytest.raises(NotFound):
            pickle.loads(pickled).by_id(1)
    assert seen == ["Basic YW5uOmh1bnRlcjIy"]


def user_and_password() -> str:
    return f"ann:{SECRET}"


def test_a_secret_is_not_compared() -> None:
    one, other = (Registry("http://a", {"basic.auth.user.info": of}) for of in ("a:b", "a:c"))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Registry("http://b")


def test_a_registry_can_be_pickled_and_copied_after_it_was_used(registry_url: str) -> None:
    registry, name = Registry(registry_url), subject()
    number = registry.register(name, "AVRO", LONG)
    for other in (pickle.loads(pickle.dumps(registry)), copy.deepcopy(registry)):
        assert other == registry
        assert other.by_id(number).id == number


@pytest.mark.parametrize("url", ["", "host:8081", "ftp://a", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(PipelineError, match="not the URL of a registry"):
        Registry(url)


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(PipelineError, match=r"Unrecognized properties: retry"):
        Registry("http://a", {"retry": 1}).by_id(1)


def test_the_subject_may_be_chosen() -> None:
    assert Registry("http://a").subject("orders", "key") == "orders-key"
    by_topic: Callable[[str, str], str] = lambda topic, part: f"{part}s of {topic}"  # noqa: E731
    assert Registry("http://a", subject=by_topic).subject("orders", "key") == "keys of orders"


# -- the number before each record ------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.lists(st.binary(max_size=20)))
def test_numbers_and_records_come_apart_as_they_were_joined(
    number: int, records: list[bytes]
) -> None:
    joined = wire.joined(number, pa.array(records, pa.binary()))
    assert joined.to_pylist() == [b"\0" + number.to_bytes(4) + of for of in records]
    numbers, back = wire.split(joined)
    assert numbers.tolist() == [number] * len(records)
    assert back.to_pylist() == records


@pytest.mark.parametrize(
    ("message", "why"),
    [(b"", "without a registry"), (b"\0\0\0", "without a registry"), (b"{}\n\n\n", "b'{}"),
     (b"\x01" + bytes(16), "in a header")],
)  # fmt: skip
def test_a_message_without_a_number_is_named(message: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why) as caught:
        wire.split(pa.array([bytes(5), message]))
    assert caught.value.row == 1
