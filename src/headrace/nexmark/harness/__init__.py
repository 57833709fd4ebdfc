"""Puts a pipeline under load in an open loop, moves state meanwhile, and reports latencies.

* ``load``: what runs, and how much comes; ``run`` runs it.
* ``latency``, ``memory``: what is measured; ``observed`` collects it.
* ``compared``: latencies while state moves, compared with those before.
* ``report``, ``picture``: the results, for programs and for people.

It needs the packages of ``headrace[nexmark]``.
"""
