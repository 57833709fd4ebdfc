"""A Kafka broker, or a cluster of them, for tests and demos.

python scripts/kafka_broker.py [--nodes 3] [--set message.max.bytes=2000000]

It runs until Ctrl-C, and prints its address. A program starts one of its own::

    with kafka_broker.start(folder, offsets_retention_minutes=1) as kafka:
        kafka.create_topic("orders", partitions=4)
        Producer({"bootstrap.servers": kafka.bootstrap})

Its jars are fetched once from Maven Central, by version and checksum (``kafka-jars.sha256``). It needs the
Java that Spark needs, and confluent-kafka. On Linux no broker outlives the process that started it, however
that ends.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

ROOT = Path(__file__).parents[1]
#: Each jar that a broker needs: its SHA-256, and its path in a Maven repository.
PINS = Path(__file__).with_name("kafka-jars.sha256")
#: What was fetched is kept here; git ignores it.
TOOLS = ROOT / ".tools"
#: Another Maven repository, where this one cannot be reached.
REPOSITORY = os.environ.get("HEADRACE_MAVEN", "https://repo1.maven.org/maven2")
#: Whatever takes longer hangs.
TIMEOUT_S = 120.0
#: Systems give none of these to outgoing connections, so a broker that comes back finds its port free.
PORTS = (20_000, 32_000)

#: How a program that runs for minutes starts soonest. Nothing of it stays outside of its folder.
_JAVA = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
_LOGGING = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
]
#: Settings of all brokers, unless others are asked for.
_SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Kafka deletes records by their timestamps. Those of tests and demos are often years old.
    "log.retention.ms": "-1",
    # Until its old session ends, a broker that was killed cannot come back.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
    "log.cleaner.dedupe.buffer.size": "4000000",
}
#: Run before the program: Linux shall end it together with the thread that started it.
_BOUND = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
#: Starts all programs, since no program outlives the thread that started it: this one ends last.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-broker-starter")


class Node:
    """One broker, which is a controller too.

    Attributes:
        id: its number, from 1.
        port: where clients connect. It stays the same after a restart.
        log: the file with the broker's output.
    """

    def __init__(self, folder: Path, number: int, port: int, heap: str) -> None:
        self.id = number
        self.port = port
        self.log = folder / f"node-{number}.log"
        self._settings = folder / f"node-{number}.properties"
        self._temporary = folder / f"node-{number}.tmp"
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where clients connect, as ``host:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether its process is there, paused or not."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it as kill -9 does. What it held in memory is lost; its files stay."""
        process = self._started()
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Let it end in order. In a cluster it can, as long as a majority of all nodes stays.

        Raises:
            RuntimeError: it is still there after two minutes.
        """
        process = self._started()
        process.terminate()
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"broker {self.id} does not end: it is paused, or too few others run; kill it"
            ) from None

    def pause(self) -> None:
        """Stop it where it is, as a virtual machine that is paused."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after a pause."""
        os.kill(self.pid, signal.SIGCONT)

    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"node {self.id} was never started"
        return self._process

    def _write_settings(self, settings: Mapping[str, str]) -> None:
        self._temporary.mkdir()
        lines = (f"{name}={value}\n" for name, value in settings.items())
        self._settings.write_text("".join(lines))

    def _format(self, cluster: str, features: Mapping[str, int]) -> subprocess.Popen[bytes]:
        levels = [f"--feature={name}={level}" for name, level in features.items()]
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster, *levels]
        return self._run([*tool, "--config", str(self._settings)], heap="128m")

    def _start(self) -> None:
        self._process = self._run(["kafka.Kafka", str(self._settings)], heap=self._heap)

    def _run(self, main: list[str], *, heap: str) -> subprocess.Popen[bytes]:
        temporary = f"-Djava.io.tmpdir={self._temporary}"
        path = os.pathsep.join(str(jar) for jar in fetch_jars())
        return spawn(
            [java(), f"-Xmx{heap}", *_JAVA, temporary, *_LOGGING, "-cp", path, *main], self.log
        )

    def _listens(self) -> bool:
        if not self.running:
            raise RuntimeError(f"broker {self.id} has ended:\n{self._end_of_log()}")
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _end_of_log(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


class Kafka:
    """Brokers that run: one, or a cluster. Leaving its ``with`` block kills them.

    Attributes:
        nodes: the brokers, in order of their numbers.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(nodes)

    @property
    def bootstrap(self) -> str:
        """What a client's ``bootstrap.servers`` must be."""
        return ",".join(node.address for node in self.nodes)

    def admin(self) -> AdminClient:
        """Return a client that makes topics, and asks about them. Keep it until its futures are done."""
        # (what goes wrong comes as an error: its log would only repeat it)
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, name: str, *, partitions: int = 1, **settings: object) -> str:
        """Make a topic and return its name, once all of its partitions have leaders.

        Args:
            name: the topic.
            partitions: the number of its partitions. Their replicas are on all nodes.
            settings: the topic's, with ``_`` in place of each dot: ``cleanup_policy="compact"``.
        """
        admin = self.admin()
        topic = NewTopic(name, partitions, len(self.nodes), config=_named(settings))
        admin.create_topics([topic])[name].result(TIMEOUT_S)
        _wait_for(lambda: _leads(admin, name, partitions), f"leaders of topic {name}")
        return name

    def kill(self) -> None:
        """End all nodes that run, as kill -9 does."""
        for node in self._running():
            node.kill()

    def pause(self) -> None:
        """Stop all nodes where they are."""
        for node in self._running():
            node.pause()

    def resume(self) -> None:
        """Let all nodes go on after a pause."""
        for node in self._running():
            node.resume()

    def restart(self, *nodes: Node) -> None:
        """Start nodes that do not run, on their data and ports; return once they answer.

        Args:
            nodes: which; none given: all that do not run.
        """
        for node in nodes or self.nodes:
            if not node.running:
                node._start()
        self._wait_until_ready(nodes or self.nodes)

    def _running(self) -> list[Node]:
        return [node for node in self.nodes if node.running]

    def _wait_until_ready(self, nodes: Iterable[Node]) -> None:
        """Wait for each node's port, and until the cluster names the nodes as its brokers."""
        for node in nodes:
            _wait_for(node._listens, f"port {node.port} of broker {node.id}", node)
        admin, ready = self.admin(), {node.id for node in nodes}
        _wait_for(lambda: ready <= _brokers(admin), f"brokers {ready}", *nodes)

    def __enter__(self) -> Kafka:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def start(
    folder: Path,
    *,
    nodes: int = 1,
    features: Mapping[str, int] | None = None,
    heap: str = "256m",
    **settings: object,
) -> Kafka:
    """Start a broker, or a cluster, with its data in a directory; return once it answers.

    Topics of a cluster have a replica on each node, and take a write once a majority has it.

    Args:
        folder: an empty directory, for data and logs; made if it is not there.
        nodes: the number of brokers.
        features: levels of Kafka's features, such as ``{"transaction.version": 1}``; those that the
            version has by default for others.
        heap: the most memory for Java objects of each broker.
        settings: settings of the brokers, with ``_`` in place of each dot:
            ``offsets_retention_minutes=1``.

    Raises:
        RuntimeError: a broker does not start, or does not know one of the settings.
    """
    given = _named(settings)
    folder.mkdir(parents=True, exist_ok=True)
    brokers = _laid_out(folder, nodes, heap, given)
    _format(brokers, features or {})
    kafka = Kafka(brokers)
    try:
        kafka.restart()
        unknown = _unknown(kafka, given)
        if unknown:
            raise RuntimeError(f"Kafka has no setting {', '.join(unknown)}")
    except BaseException:
        kafka.kill()
        raise
    return kafka


def _laid_out(folder: Path, count: int, heap: str, given: Mapping[str, str]) -> list[Node]:
    """Give nodes their ports, and write their settings."""
    ports = _free_ports(2 * count)
    nodes = [Node(folder, number, port, heap) for number, port in enumerate(ports[:count], start=1)]
    controllers = {
        node.id: f"127.0.0.1:{port}" for node, port in zip(nodes, ports[count:], strict=True)
    }
    voters = ",".join(f"{number}@{address}" for number, address in controllers.items())
    for node in nodes:
        own = {
            "node.id": str(node.id),
            "listeners": f"PLAINTEXT://{node.address},CONTROLLER://{controllers[node.id]}",
            "controller.quorum.voters": voters,
            "log.dirs": str(folder / f"node-{node.id}"),
        }
        node._write_settings({**_SETTINGS, **_replication(count), **own, **given})
    return nodes


def _replication(nodes: int) -> dict[str, str]:
    """Return settings by which every node has everything, and a majority of them is enough."""
    majority = nodes // 2 + 1
    replicas = {
        f"{name}.replication.factor": str(nodes)
        for name in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    }
    least = {
        f"{name}.min.isr": str(majority)
        for name in ("transaction.state.log", "share.coordinator.state.topic")
    }
    return {
        "default.replication.factor": str(nodes),
        "min.insync.replicas": str(majority),
        **replicas,
        **least,
    }


def _named(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings by Kafka's names, with values as Kafka writes them."""
    return {
        name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


def _format(brokers: Iterable[Node], features: Mapping[str, int]) -> None:
    cluster = base64.urlsafe_b64encode(b"headrace" + os.urandom(8)).rstrip(b"=").decode()
    started = [(broker, broker._format(cluster, features)) for broker in brokers]
    for broker, process in started:
        if process.wait(TIMEOUT_S) != 0:
            raise RuntimeError(
                f"the data of broker {broker.id} cannot be made:\n{broker._end_of_log()}"
            )


def _unknown(kafka: Kafka, names: Iterable[str]) -> list[str]:
    """Return which of these settings the brokers do not have. They start with them all the same."""
    broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = kafka.admin()
    known = admin.describe_configs([broker])[broker].result(TIMEOUT_S)
    # (of a setting that it does not know, a broker says the name without the value)
    return [name for name in names if name not in known or known[name].value is None]


def _brokers(admin: AdminClient) -> set[int]:
    try:
        return set(admin.list_topics(timeout=5).brokers)
    except KafkaException:
        return set()


def _leads(admin: AdminClient, name: str, partitions: int) -> bool:
    """Return whether all partitions of a topic have leaders, as far as the brokers know."""
    topic = admin.list_topics(name, timeout=TIMEOUT_S).topics[name]
    if topic.error is not None and topic.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise KafkaException(topic.error)
    leaders = [partition.leader for partition in topic.partitions.values()]
    return len(leaders) == partitions and min(leaders) >= 0


def _wait_for(condition: Callable[[], bool], what: str, *nodes: Node) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            said = "".join(f"\n{node._end_of_log()}" for node in nodes)
            raise RuntimeError(f"waited {TIMEOUT_S:.0f} s for {what}{said}")
        time.sleep(0.01)


def _free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody uses."""
    chance = random.SystemRandom()
    with contextlib.ExitStack() as bound:
        found: list[int] = []
        while len(found) < count:
            port = chance.randrange(*PORTS)
            probe = bound.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        return found


def spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program that does not outlive this process, with its output in a file."""

    def started() -> subprocess.Popen[bytes]:
        with open(log, "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    return _STARTER.submit(started).result()


def java() -> str:
    """Return the java that Spark uses, too."""
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    if found is None:
        raise RuntimeError("Kafka needs Java; see scripts/find-java.sh")
    return found


@functools.cache
def fetch_jars() -> list[Path]:
    """Return where the jars are; those that are not there yet are fetched."""
    with ThreadPoolExecutor(max_workers=8) as fetchers:
        return list(fetchers.map(lambda pin: _fetch(*pin), _pins()))


def _pins() -> list[tuple[str, str]]:
    lines = PINS.read_text().splitlines()
    pins = (line.split() for line in lines if not line.startswith("#"))
    return [(path, sha256) for sha256, path in pins]


def _fetch(path: str, sha256: str) -> Path:
    """Return where a file of the repository is; fetch it first if it is not there."""
    kept = TOOLS / path.rsplit("/", 1)[1]
    if kept.exists():
        return kept
    TOOLS.mkdir(exist_ok=True)
    url = f"{REPOSITORY}/{path}"
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            content = answer.read()
    except OSError as error:
        raise RuntimeError(
            f"{kept.name}, which a Kafka broker needs, could not be fetched from {url} ({error}); put it "
            f"into {TOOLS}, or set HEADRACE_MAVEN to a Maven repository that can be reached"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise RuntimeError(f"{url} has the SHA-256 {found}, not {sha256}")
    aside = kept.with_name(f"{kept.name}.{os.getpid()}")
    aside.write_bytes(content)
    os.replace(aside, kept)
    return kept


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def main() -> int:
    """Run brokers until Ctrl-C."""
    options = argparse.ArgumentParser(description="Run Kafka on this machine until Ctrl-C.")
    options.add_argument("--nodes", type=int, default=1, help="the number of brokers")
    options.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the brokers",
    )
    chosen = options.parse_args()
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="headrace-kafka-") as folder:
        try:
            with start(Path(folder), nodes=chosen.nodes, **dict(chosen.set)) as kafka:
                print(f"bootstrap.servers={kafka.bootstrap}", flush=True)
                while True:
                    signal.pause()
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
