"""What brokers do to a sink: they are killed, abort its transactions, and forget its producers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import StorageError
from tests.support.waiting import until
from tests.unit.sinks.test_kafka import World, delivery

if TYPE_CHECKING:
    from tests.support.kafka import Kafka, NewKafka

pytest.importorskip("confluent_kafka")

#: Brokers that look every 200 ms for transactions that took too long.
HASTY = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 200}
#: Brokers that forget producers that were idle for two seconds. (They may not be killed in a commit:
#: if they are away for longer than that, they forget to end it.)
FORGETFUL = {
    "transactional_id_expiration_ms": 2000,
    "transaction_remove_expired_transaction_cleanup_interval_ms": 200,
    "producer_id_expiration_ms": 2000,
    "producer_id_expiration_check_interval_ms": 200,
}


@pytest.fixture(scope="module")
def hasty(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Brokers of these tests alone. (The fixture ``kafka`` skips them where none can be started.)"""
    from tests.support.kafka import start

    with start(tmp_path_factory.mktemp("hasty"), **HASTY) as brokers:
        yield brokers


@pytest.fixture
def world(hasty: Kafka) -> World:
    return World(hasty)


@pytest.fixture
def forgetful(new_kafka: NewKafka) -> World:
    """A topic at brokers that forget."""
    return World(new_kafka(**FORGETFUL))


def before_marking(sink: Any, do: Any, *, times: int = 1) -> None:
    """Do something in so many of the next transactions: after the rows, and before the marker."""
    mark, done = sink._mark, []

    def disturbed(*given: Any) -> None:
        if len(done) < times:
            done.append(True)
            do()
        mark(*given)

    sink._mark = disturbed


@pytest.mark.drawn(4, "Kafka under faults")
def test_brokers_that_are_killed_in_a_transaction_have_each_row_once(world: World) -> None:
    sink = world.sink()
    sink.receive(delivery(0, {"a": 0}))

    def kill() -> None:
        world.kafka.kill()
        world.kafka.restart()

    before_marking(sink, kill)
    sink.receive(delivery(1, {"a": 1}))
    sink.receive(delivery(2, {"a": 2}))
    assert world.rows() == [("a", 0), ("a", 1), ("a", 2)]


def wait_until_aborted(world: World) -> None:
    """Return once the brokers have aborted what was sent to the topic and not committed."""
    from tests.support.kafka_commits import ends

    def reach(committed: bool) -> dict[int, int]:
        return ends(world.kafka, world.topic, committed=committed)

    sent = reach(False)
    until(lambda: reach(False) != sent and reach(True) == reach(False))


def test_a_step_whose_transaction_took_too_long_is_tried_again(world: World) -> None:
    sink = world.sink(settings={"transaction.timeout.ms": 1500})
    sink.receive(delivery(0, {"a": 0}))

    def outlast() -> None:
        sink._sender.flush()
        wait_until_aborted(world)

    before_marking(sink, outlast)
    sink.receive(delivery(1, {"a": 1}))
    sink.receive(delivery(2, {"a": 2}))
    assert world.rows() == [("a", 0), ("a", 1), ("a", 2)]


@pytest.mark.drawn(4, "Kafka under faults")
def test_a_step_that_always_takes_too_long_is_an_error_that_names_the_setting(world: World) -> None:
    sink = world.sink(settings={"transaction.timeout.ms": 1500})

    def outlast() -> None:
        sink._sender.flush()
        wait_until_aborted(world)

    before_marking(sink, outlast, times=100)
    with pytest.raises(StorageError, match=r"not written within 1\.5 s") as found:
        sink.receive(delivery(1, {"a": 1}))
    assert "transaction.timeout.ms" in found.value.remedy
    assert world.rows() == []


def wait_until_forgotten(world: World) -> None:
    """Return once the brokers have forgotten the producer of a sink."""
    from tests.support.kafka import read

    name = f"headrace/p/out/{world.topic}".encode()

    def forgotten() -> bool:
        known = read(world.kafka, "__transaction_state")
        last = [message.value() for message in known if name in (message.key() or b"")]
        return last[-1:] == [None]

    until(forgotten)


@pytest.mark.drawn(4, "Kafka under faults")
def test_a_sink_that_brokers_have_forgotten_goes_on_if_it_was_idle_or_stopped(
    forgetful: World,
) -> None:
    sink = forgetful.sink()
    sink.receive(delivery(0, {"a": 0}))
    wait_until_forgotten(forgetful)
    sink.receive(delivery(1, {"a": 1}))
    sink.close()
    wait_until_forgotten(forgetful)
    again = forgetful.sink()
    for number in (1, 2):
        again.receive(delivery(number, {"a": number}, epoch=2))
    assert forgetful.rows() == [("a", 0), ("a", 1), ("a", 2)]
