"""Settings of all tests: Hypothesis without deadlines (machines are noisy), failures reproducible."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from headrace.coordinator.machine import Coordinator
from tests.support import hdfs as hdfs_server
from tests.support import s3server

settings.register_profile(
    "headrace", deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
settings.register_profile(  # for those who want to know whether anything is found, not what exactly
    "unshrunk", settings.get_profile("headrace"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("headrace")
Coordinator.validates = True
# The virtual machines of tests live for seconds or minutes. What optimises them for hours takes half of the
# processor time of a test on a cluster, and slows whatever runs beside it.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
logging.getLogger("py4j").setLevel(logging.ERROR)


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
