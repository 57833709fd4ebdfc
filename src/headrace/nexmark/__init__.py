"""NEXMark: the people, auctions and bids of an online market, and queries over them.

The benchmark is by Tucker, Tufte, Papadimos and Maier: "NEXMark: a benchmark for queries over data
streams" (2002). The generator follows the model of Apache Beam, which all systems use today.

* ``draws``: random numbers and texts, each a function of a seed, a field's name and a position.
* ``timeline``: which kind each event is, and when it happens; the parameters.
* ``people``, ``auctions``, ``bids``: the columns of each kind; ``columns``: what they have in
  common.
* ``events``: ranges of the timeline as Arrow tables.
* ``source``, ``spark_source``: the events for a pipeline, and for ``spark.readStream``.
* ``pace``: when events are due, by the clock.
* ``queries``: the queries, on Headrace's computations and in plain PySpark.
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
