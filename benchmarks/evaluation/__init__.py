"""The papers' evaluations, made again: each table and figure by one command, all by ``make evaluation``.

* ``lines``: Megaphone's Table 1.
* ``queries``: its Figures 5 to 12, NEXMark's queries while state moves.
* ``overhead``: its section 5.2, what bins cost.
* ``sweeps``: its section 5.3, how long and how bad migrations are, by bins, keys and load; and memory.
* ``millwheel``: MillWheel's section 8, latency, scaling, watermark lag, and cache.
* ``papers``: what the papers say.
* ``page``: the page ``docs/evaluation.md``, from the measured JSON.
"""
