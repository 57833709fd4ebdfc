"""Brokers for tests and demos: they start, take records, die, come back, and are not left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException

from tests.support import processes
from tests.support.kafka import Kafka, NewKafka, new_topic, producer, read, write

#: Starts a program as brokers are started, and is killed.
IS_KILLED = """
import os, pathlib, signal, sys
from scripts import kafka_broker

started = kafka_broker.spawn(["/bin/sleep", "1000"], pathlib.Path(sys.argv[1]))
print(started.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def brokers() -> set[int]:
    """Return the brokers that this process has started."""
    return {child.pid for child in psutil.Process().children() if "kafka.Kafka" in child.cmdline()}


def test_what_is_written_is_read(kafka: Kafka) -> None:
    topic = new_topic(kafka, partitions=3)
    write(kafka, topic, [(b"a", b"1"), (b"b", None), (None, b"3")])
    assert {(record.key(), record.value()) for record in read(kafka, topic)} == {
        (b"a", b"1"),
        (b"b", None),
        (None, b"3"),
    }


def test_an_aborted_transaction_is_not_read_unless_uncommitted_records_are_asked_for(
    kafka: Kafka,
) -> None:
    topic = new_topic(kafka)
    writer = producer(kafka, transactional_id=topic)
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(topic, b"aborted")
    writer.flush()
    writer.abort_transaction()
    writer.begin_transaction()
    writer.produce(topic, b"committed")
    writer.commit_transaction()
    assert [record.value() for record in read(kafka, topic)] == [b"committed"]
    everything = read(kafka, topic, committed=False)
    assert [record.value() for record in everything] == [b"aborted", b"committed"]


def test_a_broker_that_is_paused_answers_when_it_goes_on(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    writer = producer(kafka)
    kafka.pause()
    try:
        processes.wait_for(lambda: psutil.Process(kafka.nodes[0].pid).status() == "stopped")
        writer.produce(topic, b"1")
    finally:
        kafka.resume()
    assert writer.flush() == 0
    assert [record.value() for record in read(kafka, topic)] == [b"1"]


def test_a_topic_that_nobody_made_is_not_made_by_writing_to_it(kafka: Kafka) -> None:
    with pytest.raises(KafkaException, match="Unknown topic"):
        write(kafka, "nobody-made-it", [(None, b"1")], topic_metadata_propagation_max_ms=10)


@pytest.mark.drawn(4, "Kafka under faults")
def test_a_broker_that_is_killed_has_its_records_and_its_port_after_a_restart(
    new_kafka: NewKafka,
) -> None:
    kafka = new_kafka(message_max_bytes=2_000_000)
    before = kafka.bootstrap
    topic = new_topic(kafka)
    write(kafka, topic, [(None, b"x" * 1_500_000)], message_max_bytes=2_000_000)
    kafka.kill()
    assert not kafka.nodes[0].running
    kafka.restart()
    write(kafka, topic, [(None, b"after")])
    assert [len(record.value()) for record in read(kafka, topic)] == [1_500_000, 5]
    assert kafka.bootstrap == before


@pytest.mark.drawn(4, "Kafka under faults")
def test_a_cluster_of_three_goes_on_without_one_node(new_kafka: NewKafka) -> None:
    kafka = new_kafka(nodes=3)
    topic = new_topic(kafka, partitions=3)
    write(kafka, topic, [(b"%d" % number, b"before") for number in range(9)])
    kafka.nodes[0].kill()
    write(kafka, topic, [(b"%d" % number, b"after") for number in range(9)])
    assert len(read(kafka, topic)) == 18


def test_a_setting_that_kafka_does_not_have_is_refused_and_nothing_is_left_running(
    new_kafka: NewKafka,
) -> None:
    before = brokers()
    with pytest.raises(RuntimeError, match=r"Kafka has no setting offset\.retention\.minutes"):
        new_kafka(offset_retention_minutes=1, log_initial_task_delay_ms=100)
    assert brokers() == before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot be asked for it")
def test_no_broker_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    died = subprocess.run(
        [sys.executable, "-c", IS_KILLED, tmp_path / "log"],
        cwd=processes.ROOT,
        stdout=subprocess.PIPE,
        check=False,
    )
    processes.wait_for(lambda: not psutil.pid_exists(int(died.stdout)))
