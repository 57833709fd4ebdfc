"""From topic to topic, while drivers and the broker are killed, each record counts once."""

from __future__ import annotations

import contextlib
import random
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.support import processes
from tests.support.cluster import HOSTS, StandaloneCluster
from tests.support.kafka import Kafka, NewKafka, new_topic, producer
from tests.support.kafka_commits import committed

pytest.importorskip("confluent_kafka")

MODULE = ["-m", "tests.faults.kafka.through"]


def write_some(kafka: Kafka, topic: str, rng: random.Random, records: int) -> None:
    """Write records with and without transactions, of which some are aborted."""
    writer = producer(kafka, transactional_id=f"{topic}-writer")
    writer.init_transactions()
    plain = producer(kafka)
    while records > 0:
        count = rng.randint(1, 60)
        records -= count
        kind = rng.choice(["plain", "commit", "commit", "abort"])
        to = plain if kind == "plain" else writer
        if kind != "plain":
            writer.begin_transaction()
        for _ in range(count):
            value = msgspec.json.encode({"key": rng.randrange(7)})
            to.produce(topic, value, partition=rng.randrange(3))
        to.flush()
        if kind != "plain":
            (writer.commit_transaction if kind == "commit" else writer.abort_transaction)()


def check(kafka: Kafka, into: str, out: str) -> None:
    """Check that each committed record has one count, and that counts by key leave no gap."""
    read = {
        (m.partition(), m.offset()): msgspec.json.decode(m.value() or b"")
        for m in committed(kafka, into)
    }
    counts: dict[int, list[int]] = defaultdict(list)
    found = []
    for message in committed(kafka, out):
        row = msgspec.json.decode(message.value() or b"")
        where = row["partition"], row["offset"]
        found.append(where)
        counts[read[where]["key"]].append(row["seen"])
    assert sorted(found) == sorted(read)
    assert all(seen == list(range(1, len(seen) + 1)) for seen in counts.values())


def lives(kafka: Kafka, into: str, out: str, folder: Path, rng: random.Random, kills: int) -> None:
    """Let drivers work and kill them; the last one reads all that there is."""
    command = [*MODULE, kafka.bootstrap, into, out, str(folder / "state")]
    log = folder / "log"
    killed = 0
    while True:
        driver = processes.start(command, log)
        if killed < kills:
            if grown(folder / "state", rng.randint(2, 30), driver):
                processes.pause(rng.random() / 20, driver)
            driver.kill()
            driver.wait()
            killed += 1
            write_some(kafka, into, rng, 300)
            continue
        assert driver.wait(120) == 0, log.read_text()[-5_000:]
        return


def grown(state: Path, files: int, driver: subprocess.Popen[bytes]) -> bool:
    """Wait until a driver has written so many files; return False if it ends before."""
    before = len(list(state.rglob("*")))
    return processes.wait_for(lambda: len(list(state.rglob("*"))) > before + files, process=driver)


@pytest.mark.parametrize("seed", [1])
@pytest.mark.drawn(4, "Kafka under faults")
def test_killed_drivers_count_each_record_once(kafka: Kafka, seed: int, tmp_path: Path) -> None:
    through(kafka, seed, tmp_path, kills=4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_drivers_killed_ten_times_count_each_record_once(
    kafka: Kafka, seed: int, tmp_path: Path
) -> None:
    through(kafka, seed, tmp_path, kills=10)


def through(kafka: Kafka, seed: int, folder: Path, kills: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    into, out = new_topic(kafka, partitions=3), new_topic(kafka, partitions=2)
    write_some(kafka, into, rng, 500)
    lives(kafka, into, out, folder, rng, kills)
    check(kafka, into, out)


def is_worker(process: psutil.Process) -> bool:
    """Return whether it is a Python worker of Spark, and not the daemon of one."""
    with contextlib.suppress(psutil.Error):
        return "pyspark" in " ".join(process.cmdline()) and not process.children()
    return False


@pytest.mark.soak
@pytest.mark.parametrize("exchange", ["auto", "shuffle"])
def test_killed_workers_of_spark_count_each_record_once(
    kafka: Kafka, tmp_path: Path, exchange: str
) -> None:
    rng = random.Random(3)

    def kill_one(driver: psutil.Process) -> bool:
        workers = [child for child in driver.children(recursive=True) if is_worker(child)]
        if workers:
            rng.choice(workers).kill()
        return bool(workers)

    assert while_killed(kafka, tmp_path, ["local[2]", exchange], kill_one, most=8) >= 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    (tmp_path / "cluster").mkdir()
    made = StandaloneCluster(tmp_path / "cluster")
    made.start(*HOSTS)
    yield made
    made.close()


@pytest.mark.soak
@pytest.mark.parametrize("exchange", ["auto", "shuffle"])
def test_killed_executors_count_each_record_once(
    kafka: Kafka, cluster: StandaloneCluster, tmp_path: Path, exchange: str
) -> None:
    rng = random.Random(4)

    def kill_one(driver: psutil.Process) -> bool:
        executors = cluster.executors(rng.choice(HOSTS))
        processes.kill_all(executors)
        return bool(executors)

    assert while_killed(kafka, tmp_path, [cluster.master, exchange], kill_one, most=8) >= 3


def while_killed(
    kafka: Kafka,
    folder: Path,
    where: list[str],
    kill_one: Callable[[psutil.Process], bool],
    *,
    most: int,
) -> int:
    """Kill somebody of Spark again and again while a driver works; return how often."""
    rng = random.Random(3)
    into, out = new_topic(kafka, partitions=3), new_topic(kafka, partitions=2)
    write_some(kafka, into, rng, 3_000)
    log, state = folder / "log", folder / "state"
    command = [*MODULE, kafka.bootstrap, into, out, str(state)]
    driver = processes.start([*command, *where], log)
    killed = 0
    while grown(state, 5, driver):
        if killed < most and kill_one(psutil.Process(driver.pid)):
            killed += 1
            write_some(kafka, into, rng, 200)
    assert driver.wait(120) == 0, log.read_text()[-5_000:]
    last = processes.start(command, log)  # reads what was written since the other has begun
    assert last.wait(120) == 0, log.read_text()[-5_000:]
    check(kafka, into, out)
    return killed


@pytest.mark.drawn(4, "Kafka under faults")
def test_a_broker_that_is_killed_and_comes_back_is_waited_for(
    new_kafka: NewKafka, tmp_path: Path
) -> None:
    kafka = new_kafka()
    rng = random.Random(5)
    into, out = new_topic(kafka, partitions=3), new_topic(kafka, partitions=2)
    write_some(kafka, into, rng, 2_000)
    log = tmp_path / "log"
    driver = processes.start([*MODULE, kafka.bootstrap, into, out, str(tmp_path / "state")], log)
    assert grown(tmp_path / "state", 20, driver)
    kafka.kill()
    kafka.restart()
    assert driver.wait(120) == 0, log.read_text()[-5_000:]
    check(kafka, into, out)
