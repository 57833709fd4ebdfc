"""Settings of all tests, and the servers that they share."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from headrace.coordinator.machine import Coordinator
from tests.support import draws, examples, fast, java, s3server
from tests.support import hdfs as hdfs_server
from tests.support.packing import packing

if TYPE_CHECKING:
    from tests.support.kafka import Kafka, NewKafka

examples.register_profiles()
Coordinator.validates = True
os.environ.setdefault("JAVA_TOOL_OPTIONS", java.options())
logging.getLogger("py4j").setLevel(logging.ERROR)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if draws.draws(config):
        items[:], left_out = draws.drawn(items, draws.seed())
        config.hook.pytest_deselected(items=left_out)
    examples.limit(items)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if draws.draws(config):
        terminalreporter.write_line(f"variants drawn by {draws.SEED}={draws.seed()}")


@pytest.fixture(scope="session", autouse=True)
def one_process_in_a_fast_run() -> Iterator[None]:
    """Skip whatever would start another process in a fast run."""
    is_fast = examples.profile() == "fast"
    with fast.no_other_process() if is_fast else contextlib.nullcontext():
        yield


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3server.S3Server]:
    """A real S3 server, which this process's environment names; started when it is first asked for."""
    server = s3server.start(tmp_path_factory.mktemp("s3"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server
    server.process.stop()


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hdfs_server.Hdfs]:
    """A real HDFS; started when it is first asked for."""
    server = hdfs_server.start(tmp_path_factory.mktemp("hdfs"))
    yield server
    server.process.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A real Kafka broker for topics with names of their own; started when it is first asked for."""
    with _kafka_server().start(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def new_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewKafka]:
    """Starts brokers of the test's own, with settings of its own, that it may kill."""
    with contextlib.ExitStack() as started:

        def start(**options: Any) -> Kafka:
            folder = tmp_path_factory.mktemp("kafka")
            return started.enter_context(_kafka_server().start(folder, **options))

        yield start


def _kafka_server() -> ModuleType:
    """Return what starts brokers. A fast run would skip their tests only after it fetched the jars."""
    if examples.profile() == "fast":
        pytest.skip("starts another process; not in a fast run")
    from tests.support import kafka as kafka_server

    return kafka_server


@pytest.fixture
def own_files() -> Iterator[None]:
    """Let each file of a step be a file of its own: for tests of how these are read and deleted."""
    with packing("files"):
        yield
