"""On Spark with storage that only a server has: driver and Python workers are told where and who."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import open_store
from tests.property.oracle.model import Model, NodeSpec, Spec
from tests.spark.conftest import session
from tests.support.pipelines import Collected, draw, run_inline, run_until_read
from tests.support.s3server import S3Server

pytestmark = pytest.mark.spark

SPEC = Spec(
    injectors={"first": [((i * 7) % 5, i % 3, i * 3) for i in range(24)]},
    bound=5,
    rows=8,
    nodes=[NodeSpec("node0", [("first", "a")], delay=10, echo=True)],
)


def test_a_pipeline_on_an_object_store_stops_and_goes_on_with_other_workers(s3: S3Server) -> None:
    model = Model(SPEC, hr.hash_key)
    model.run()
    told = {f"spark.executorEnv.{name}": value for name, value in s3.environment.items()}
    spark: Any = session("local[2,4]", **told)
    try:
        collected, store = Collected(), open_store(s3.location())
        run_until_read(
            draw(SPEC, collected),
            store,
            8,
            rows=SPEC.rows,
            runner=SparkRunner(spark.sparkContext),
        )
        run_inline(
            draw(SPEC, collected),
            store=store,
            rows=SPEC.rows,
            workers=3,
            exchange="shuffle",
            runner=SparkRunner(spark.sparkContext),
        )
    finally:
        spark.stop()
    assert collected.rows() == dict(model.outputs)
    assert store.list("probes/") == []
