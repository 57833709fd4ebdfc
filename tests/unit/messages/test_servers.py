"""Kafka's servers: which settings are refused, and what errors and representations show."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import pytest

from headrace.errors import NotFound, PipelineError, StorageDenied, StorageError
from headrace.messages.servers import Heard, Servers, is_secret

kafka_client = pytest.importorskip("confluent_kafka")

SECRET = "hunter22"
SETTINGS = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": SECRET}


@pytest.mark.parametrize("servers", ["a:9092,b:9092", "a:9092, b:9092", ["a:9092", "b:9092"]])
def test_servers_are_a_text_or_a_list(servers: str | list[str]) -> None:
    assert Servers(servers).addresses == "a:9092,b:9092"


@pytest.mark.parametrize("servers", ["SASL_SSL://a:9092", "[::1]:9092", "a.b-c.example", "a_b:1"])
def test_an_address_may_have_a_protocol_and_may_have_no_port(servers: str) -> None:
    assert Servers(servers).addresses == servers


@pytest.mark.parametrize("servers", ["", "a:9092,", "http://ann:pass@a:1", "a b", "a:x", []])
def test_what_is_no_address_is_refused(servers: str | list[str]) -> None:
    with pytest.raises(PipelineError, match="no addresses of Kafka"):
        Servers(servers)


def test_a_setting_that_the_client_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(PipelineError, match=r"No such configuration property: \"linger\""):
        Servers("a:1", {"linger": "5"})


def test_a_setting_of_the_java_client_is_refused_with_the_name_that_it_has_here() -> None:
    with pytest.raises(PipelineError, match=r"here it is sasl\.username and sasl\.password"):
        Servers("a:1", {"sasl.jaas.config": "x"})


def test_a_setting_that_is_no_text_is_refused() -> None:
    with pytest.raises(PipelineError, match="'acks' is of type NoneType"):
        Servers("a:1", {"acks": None})


def test_a_file_that_does_not_exist_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"ssl\.ca\.location names a file that does not exist"):
        Servers("a:1", {"ssl.ca.location": str(tmp_path / "none.pem")})


def test_the_servers_are_given_once() -> None:
    with pytest.raises(PipelineError, match="given twice"):
        Servers("a:1", {"bootstrap.servers": "b:1"})


def test_a_user_changes_usual_settings_and_no_fixed_ones() -> None:
    servers = Servers("a:1", {"linger.ms": 7, "enable.idempotence": True})
    config = servers.producer_config({"enable.idempotence": True}, {"linger.ms": 5, "acks": "all"})
    assert (config["linger.ms"], config["acks"]) == (7, "all")
    with pytest.raises(PipelineError, match=r"linger\.ms is set by Headrace here, to 5"):
        servers.consumer_config({"linger.ms": 5})


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    ],
)
def test_these_are_secrets(name: str) -> None:
    assert is_secret(name)


def test_no_representation_shows_a_secret() -> None:
    servers = Servers("a:1", SETTINGS)
    assert SECRET not in f"{servers!r} {servers} {servers.place('t')}"
    assert "sasl.password" in repr(servers)


@pytest.mark.parametrize("said", [f"bad {SECRET}", f"beginning at: {SECRET[3:]}", SECRET])
def test_no_error_shows_a_secret_or_an_end_of_it(said: str) -> None:
    servers = Servers("a:1", SETTINGS)
    error = kafka_client.KafkaError(kafka_client.KafkaError._FAIL, said)
    for shown in (servers.failed(error, "x"), servers.failed(error, "x", heard=said)):
        assert said not in str(shown)
        assert "***" in str(shown)


def test_servers_travel_by_pickle() -> None:
    servers = Servers("a:1", SETTINGS)
    assert pickle.loads(pickle.dumps(servers)) == servers == copy.deepcopy(servers)
    assert servers != Servers("a:1", SETTINGS | {"sasl.password": "other"})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", StorageDenied),
        ("SASL_AUTHENTICATION_FAILED", StorageDenied),
        ("UNKNOWN_TOPIC_OR_PART", NotFound),
        ("_TRANSPORT", StorageError),
        ("NOT_ENOUGH_REPLICAS", StorageError),
    ],
)
def test_an_error_of_the_client_says_what_where_and_what_to_do(
    name: str, kind: type[Exception]
) -> None:
    error = kafka_client.KafkaError(getattr(kafka_client.KafkaError, name))
    found = Servers("a:1").failed(kafka_client.KafkaException(error), "it fails", topic="orders")
    assert type(found) is kind
    assert name in found.what
    assert found.place == "topic 'orders' of Kafka at a:1"
    assert found.remedy


def test_what_a_client_said_of_a_server_is_kept_rather_than_that_all_are_down() -> None:
    heard = Heard()
    for name, said in [("_TRANSPORT", "refused"), ("_ALL_BROKERS_DOWN", "1/1 are down")]:
        heard.note(kafka_client.KafkaError(getattr(kafka_client.KafkaError, name), said))
    assert heard.last == "refused"


def test_without_the_client_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(PipelineError, match=r'pip install "headrace\[kafka\]"'):
        Servers("a:1")
