"""Real Spark for tests: a local session, and a standalone cluster of two hosts on loopback addresses."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.session.settings import SESSION_SETTINGS
from tests.support.cluster import cluster_settings, standalone_cluster


def session(master: str, **more: str) -> Any:
    """Start a session as Headrace would, on a given master."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("headrace-tests").master(master)
    for key, value, _ in SESSION_SETTINGS:
        builder = builder.config(key, value)
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    for key, value in {**quiet, **more}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def exchanges(*usual: str, in_soak: list[str]) -> list[Any]:
    """Return the ways of records between layers that a long test tries, each as a parameter."""
    return [*usual, *(pytest.param(name, marks=pytest.mark.soak) for name in in_soak)]


@pytest.fixture(scope="module")
def local_spark() -> Iterator[Any]:
    """A local session with four task slots; a failed task is tried again."""
    spark = session("local[4,4]")
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone master with two workers on two addresses, two slots each: its URL."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as master:
        yield master


@pytest.fixture(scope="module")
def cluster(standalone: str) -> Iterator[Any]:
    """A session on a standalone cluster of two hosts."""
    spark = session(standalone, **cluster_settings())
    yield spark
    spark.stop()
