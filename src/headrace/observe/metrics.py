"""The metrics of pipelines for Prometheus, computed when they are asked for.

Counters come from the newest committed step of a pipeline, not from a process. So they are exact,
and the same whatever process exports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from headrace.errors.printable import MOST_CELL, printable
from headrace.observe.metric_definitions import (
    BUILD_INFO,
    METRICS,
    STEP_DURATION,
    STORAGE_METRICS,
    Definition,
    Sample,
)
from headrace.observe.step_durations import StepDurations
from headrace.observe.watching import Reading, with_own_names

TOTAL = "_total"


class PipelineCollector(Collector):
    """Collects the metrics of some pipelines.

    A pipeline whose storage cannot be read has no series but those that say so. Numbers of an
    earlier time would look like present ones.

    Args:
        readings: what is known of each storage.
        durations: how long the steps of a run in this process took, if there is one.
    """

    def __init__(self, readings: Sequence[Reading], durations: StepDurations | None = None) -> None:
        self._readings = with_own_names(readings)
        self._durations = durations

    def collect(self) -> Iterator[Family]:
        """Yield all metrics, each with the series of all pipelines."""
        yield family_of(BUILD_INFO, [((version("headrace"),), 1)])
        for storage_metric in STORAGE_METRICS:
            yield family_of(storage_metric, self._of_storages(storage_metric.samples))
        for metric in METRICS:
            yield family_of(metric, self._of_pictures(metric.samples))
        if self._durations is not None:
            yield histogram_of(self._durations)

    def _of_storages(self, samples: Callable[[Reading], Iterable[Sample]]) -> Iterator[Sample]:
        for reading in self._readings:
            for labels, value in samples(reading):
                yield (reading.pipeline, *labels), value

    def _of_pictures(self, samples: Callable[..., Iterable[Sample]]) -> Iterator[Sample]:
        for reading in self._readings:
            if reading.present is not None:
                for labels, value in samples(reading.present):
                    yield (reading.pipeline, *labels), value


def family_of(definition: Definition, samples: Iterable[Sample]) -> Family:
    """Return a metric with its series. Series without a value are left out.

    Names come from storage, so labels are made fit for a terminal, and bounded.
    """
    family: CounterMetricFamily | GaugeMetricFamily
    if definition.kind == "counter":
        name = definition.name.removesuffix(TOTAL)
        family = CounterMetricFamily(name, definition.help, labels=definition.all_labels)
    else:
        family = GaugeMetricFamily(definition.name, definition.help, labels=definition.all_labels)
    for labels, value in samples:
        if value is not None:
            family.add_metric([printable(label, MOST_CELL) for label in labels], float(value))
    return family


def histogram_of(durations: StepDurations) -> Family:
    """Return how long the steps of a run took, as a metric."""
    up_to, seconds = durations.up_to()
    family = HistogramMetricFamily(
        STEP_DURATION.name, STEP_DURATION.help, labels=STEP_DURATION.all_labels
    )
    buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in up_to]
    family.add_metric([printable(durations.pipeline, MOST_CELL)], buckets, seconds)
    return family


def exposition(
    readings: Sequence[Reading], accept: str = "", durations: StepDurations | None = None
) -> tuple[bytes, str]:
    """Return the metrics as a scraper reads them, and their content type.

    Args:
        readings: what is known of each storage.
        accept: the formats that the scraper accepts, as its request says.
        durations: how long the steps of a run in this process took, if there is one.
    """
    encode, content_type = choose_encoder(accept)
    return encode(PipelineCollector(readings, durations)), content_type
