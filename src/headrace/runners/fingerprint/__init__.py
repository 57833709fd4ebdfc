"""The fingerprint of a pipeline's code: equal in two processes that run the same code, different otherwise.

A step that weak sinks have seen before its commit must be finished by the code that began it: other
code may come to other rows under the same id. The code itself cannot be kept, so its fingerprint is.

It covers what results depend on: how the pipeline is drawn, and the user's functions and classes with
all that they refer to, as it is when the driver starts. It leaves out where code is (lines, comments,
docstrings, file names), and counts what is installed by its name alone. A pickle would not do: it
differs between two processes.

* ``walk``: goes through objects, each once, in an order that is the same in every process.
* ``kinds``: how each kind of object is taken apart; ``objects``: those that are of no such kind.
* ``code``: what bytecode says and refers to; ``imported``: modules that only running code imports.
* ``owners``: what is the user's, and what is installed.
"""

from __future__ import annotations

import warnings

from headrace.computation.columnar import ColumnarComputation
from headrace.computation.computation import Computation
from headrace.pipeline import Pipeline
from headrace.runners.fingerprint.kinds import how
from headrace.runners.fingerprint.owners import Owners
from headrace.runners.fingerprint.walk import Walk

#: How fingerprints are made. Those of two ways cannot be compared (:meth:`Intent.is_of_other_code`).
WAY = "2"


def fingerprint(pipeline: Pipeline) -> str:
    """Return the fingerprint of the code that computes a pipeline's results.

    Sinks are left out, and where sources are.

    Cost: all that the user's functions refer to is looked at once. That is some milliseconds, also where
    they use numpy and pandas; a second for a hundred thousand lists in a global.
    """
    walk = Walk(Owners(_packages(pipeline)), how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # (Python warns of taking iterators apart)
        for part in _parts(pipeline):
            walk.add(part)
    return f"{WAY}:{walk.digest}"


def _parts(pipeline: Pipeline) -> list[object]:
    parts: list[object] = [pipeline.identity()]
    for name, injector in sorted(pipeline.injectors.items()):
        source = injector.source
        parts.append([
            name, type(source), source.read_by(), source.values().python_type, injector.rules,
            injector.on_error,
        ])  # fmt: skip
    for name, node in pipeline.nodes.items():
        parts.append([
            name, node.computation, node.key_columns, node.key_fields, node.on_error, node.late,
            node.allowed_lateness_us, node.by_percentile, node.ordered, node.chained,
            [stream.name for stream in node.inputs], sorted(node.outputs),
        ])  # fmt: skip
    parts.append({name: node.stream.name for name, node in sorted(pipeline.sinks.items())})
    return parts


def _packages(pipeline: Pipeline) -> set[str]:
    """Return the modules that are the user's wherever they are: where it is drawn, and computed."""
    kinds = [kind for node in pipeline.nodes.values() for kind in type(node.computation).__mro__]
    computing = (Computation, ColumnarComputation)
    return {pipeline.drawn_in, *(kind.__module__ for kind in kinds if issubclass(kind, computing))}
