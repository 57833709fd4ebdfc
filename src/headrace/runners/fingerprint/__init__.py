"""The fingerprint of a pipeline's code.

It is equal in two processes that run the same code, and differs if they do not.

Weak sinks see a step before its commit. Such a step must be finished by the code that started it,
because other code might produce other rows under the same id. The code itself cannot be stored, so
its fingerprint is.

The fingerprint covers everything that results depend on: the topology, and the user's functions and
classes with all that they refer to, as of the start of the driver. It leaves out where code is:
lines, comments, docstrings, file names. Installed code counts by its name alone. A pickle would not
do, because it differs between two processes.

- ``walk`` goes through objects, each once, in an order that is the same in every process.
- ``kinds`` says how each kind of object is taken apart; ``objects`` does so for those of no such
  kind.
- ``code`` says what is in bytecode and what it refers to; ``imported`` finds modules that only
  running code imports.
- ``owners`` says what is the user's, and what is installed.
"""

from __future__ import annotations

import warnings

from headrace.computation.columnar import ColumnarComputation
from headrace.computation.computation import Computation
from headrace.pipeline import Pipeline
from headrace.runners.fingerprint.kinds import how
from headrace.runners.fingerprint.owners import Owners
from headrace.runners.fingerprint.walk import Walk

#: The version of the method. Fingerprints of two versions cannot be compared
#: (:meth:`headrace.ledger.intent.Intent.is_of_other_code`).
WAY = "2"


def fingerprint(pipeline: Pipeline) -> str:
    """Return the fingerprint of the code that computes a pipeline's results.

    Sinks count only by their names and streams. The locations of sources are left out.

    Cost: all objects that the user's functions refer to are visited once. This takes some
    milliseconds, even for functions that use NumPy and pandas, and a second for a global that holds
    a hundred thousand lists.
    """
    walk = Walk(Owners(_packages(pipeline)), how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about iterators that are taken apart
        for part in _parts(pipeline):
            walk.add(part)
    return f"{WAY}:{walk.digest}"


def _parts(pipeline: Pipeline) -> list[object]:
    parts: list[object] = [pipeline.declared_schema()]
    for name, injector in sorted(pipeline.injectors.items()):
        source = injector.source
        parts.append(
            [
                name,
                type(source),
                source.read_by(),
                source.values().python_type,
                injector.rules,
                injector.on_error,
            ]
        )
    for name, node in pipeline.nodes.items():
        parts.append(
            [
                name,
                node.computation,
                node.key_columns,
                node.key_fields,
                node.on_error,
                node.late,
                node.allowed_lateness_us,
                node.by_percentile,
                node.ordered,
                node.chained,
                [
                    stream.name if stream.rewrite is None else [stream.label, stream.rewrite]
                    for stream in node.inputs
                ],
                sorted(node.outputs),
            ]
        )
    parts.append({name: node.stream.name for name, node in sorted(pipeline.sinks.items())})
    return parts


def _packages(pipeline: Pipeline) -> set[str]:
    """Return modules that count as the user's wherever they are installed.

    These are the module that builds the pipeline and those of its computations.
    """
    kinds = [kind for node in pipeline.nodes.values() for kind in type(node.computation).__mro__]
    computing = (Computation, ColumnarComputation)
    return {pipeline.module, *(kind.__module__ for kind in kinds if issubclass(kind, computing))}
