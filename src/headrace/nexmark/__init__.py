"""NEXMark: people, auctions and bids of an online market, and questions about them.

Tucker, Tufte, Papadimos, Maier: "NEXMark: a benchmark for queries over data streams" (2002), with the
generator's model as Apache Beam has it, which all systems of today use.

* ``draws``: numbers and texts by chance, each a function of a seed, a field's name and a position.
* ``timeline``: which event is what, and when; the knobs.
* ``people``, ``auctions``, ``bids``: the columns of each kind; ``columns``: what they have in common.
* ``events``: ranges of the timeline as Arrow tables.
* ``source``, ``spark_source``: the same for a pipeline, and for ``spark.readStream``.
* ``pace``: when they are due, by the clock.
* ``queries``: the questions, on our computations and in plain PySpark.
* ``harness``: a query under load (``headrace nexmark``).

Example::

    import headrace as hr
    from headrace.nexmark import Events, Timeline

    pipeline = hr.Pipeline("auctions")
    bids = pipeline.inject("bids", Events(Timeline(events=1_000_000), "bid"), watermark=hr.exact())
"""

from headrace.nexmark.pace import Pace
from headrace.nexmark.source import Events
from headrace.nexmark.timeline import Kind, Timeline

__all__ = ["Events", "Kind", "Pace", "Timeline"]
