"""The anchor of the shuffle. It keeps the tasks after a shuffle on the hosts of their workers."""

from __future__ import annotations

import logging
from typing import Any

from headrace.runners.spark import private_api

log = logging.getLogger("headrace.spark")

#: Maximum number of attempts to build an anchor with all partitions on the right hosts.
_ATTEMPTS = 4


def same(number: int) -> int:
    """Return the number itself. Partitions parcels, which are addressed by worker number."""
    return number


def make_anchor(context: Any, hosts: list[str]) -> Any:
    """Return a cached RDD with the same partitioner as parcels. Spark runs their tasks next to it.

    A partition stays where it is computed first. So it is computed next to an RDD that prefers the
    worker's host. If a slot is occupied at that moment, Spark computes the partition elsewhere, and
    it would stay there. So the result is checked, and if necessary rebuilt one partition after the
    other.

    Args:
        context: the SparkContext.
        hosts: the host for each partition.
    """
    every = list(range(len(hosts)))
    pairs = [(number, None) for number in every]
    located = private_api.located(context, every, hosts)
    for attempt in range(_ATTEMPTS):
        anchor = context.parallelize(pairs, len(hosts)).partitionBy(len(hosts), same).persist()
        for part in [every] if attempt == 0 else [[number] for number in every]:
            private_api.compute_beside(anchor, located, part)
        # Spark updates the locations of cached partitions with each job.
        private_api.compute_beside(anchor, located, [0])
        found = private_api.cached_hosts(anchor)
        if found in (hosts, []):
            return anchor
        log.debug("workers live on %s, their partitions of the anchor are on %s", hosts, found)
        if attempt < _ATTEMPTS - 1:
            anchor.unpersist()
    log.warning("workers live on %s; with the shuffle they run on %s", hosts, found)
    return anchor
