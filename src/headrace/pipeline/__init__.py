"""The graph that a user builds: injectors, computations and sinks, checked as they are added.

* ``builder``: building it; ``edits``: copying, removing and replacing.
* ``graph``: reading it; ``declared_schema`` and ``state_schemas``: the part that stored data depends on.
* ``nodes``, ``streams``, ``outputs``: what it consists of; ``keys``: how streams are keyed.
* ``layers``: which computations run together; ``watermark_rules``, ``arguments``: checks of
  arguments.
* ``source``, ``sink``: the interfaces of sources and sinks; ``sinks``: checks across sinks.
* ``sifting``, ``dead_letters``: records that a source cannot read; ``retention``: how long
  productions are kept.
"""

from headrace.pipeline.builder import Pipeline
from headrace.pipeline.keys import Computed, Hashed, Salt
from headrace.pipeline.nodes import Injector, Node, SinkNode
from headrace.pipeline.streams import DEAD_LETTER, DeadLetter, Stream

__all__ = [
    "DEAD_LETTER",
    "Computed",
    "DeadLetter",
    "Hashed",
    "Injector",
    "Node",
    "Pipeline",
    "Salt",
    "SinkNode",
    "Stream",
]
