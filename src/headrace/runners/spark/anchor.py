"""The anchor of the shuffle: what keeps the tasks behind it on the hosts of their workers."""

from __future__ import annotations

import logging
from typing import Any

from headrace.runners.spark import private_api

log = logging.getLogger("headrace.spark")

#: So often an anchor is built, for all of its partitions to be at home.
_TRIES = 4


def same(number: int) -> int:
    """The partitioner of parcels: they are addressed by worker number."""
    return number


def make_anchor(context: Any, hosts: list[str]) -> Any:
    """Return a cached RDD with the parcels' partitioner: their tasks go where its partitions are.

    Which is where they are first computed; so that is done next to something that is at home. Where a
    slot is taken at that moment, Spark computes a partition elsewhere, and there it would stay. So
    it is looked at, and built anew one partition after the other.

    Args:
        context: the SparkContext.
        hosts: where each partition is to be.
    """
    every = list(range(len(hosts)))
    pairs = [(number, None) for number in every]
    at_home = private_api.located(context, every, hosts)
    for tried in range(_TRIES):
        anchor = context.parallelize(pairs, len(hosts)).partitionBy(len(hosts), same).persist()
        for part in [every] if tried == 0 else [[number] for number in every]:
            private_api.compute_beside(anchor, at_home, part)
        # (Spark looks anew where they are with each job)
        private_api.compute_beside(anchor, at_home, [0])
        found = private_api.cached_hosts(anchor)
        if found in (hosts, []):
            return anchor
        log.debug("workers live on %s, their partitions of the anchor are on %s", hosts, found)
        if tried < _TRIES - 1:
            anchor.unpersist()
    log.warning("workers live on %s; with the shuffle they run on %s", hosts, found)
    return anchor
