"""NEXMark: people, auctions and bids of an online market, and questions about them.

Tucker, Tufte, Papadimos, Maier: "NEXMark: a benchmark for queries over data streams" (2002), with the
generator's model as Apache Beam has it, which all systems of today use.

* ``draws``: numbers and texts by chance, each a function of a seed, a field's name and a position.
* ``timeline``: which event is what, and when; the knobs.
* ``people``, ``auctions``, ``bids``: the columns of each kind.
* ``events``: ranges of the timeline as Arrow tables.
* ``source``, ``spark_source``: the same for a pipeline, and for ``spark.readStream``.
"""
