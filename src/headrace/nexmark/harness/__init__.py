"""Puts a pipeline under load in open loop, lets state move meanwhile, and tells how late events were.

* ``load``: what is run, and how much comes; ``running`` runs it.
* ``latency``, ``memory``: what is measured; ``seen`` holds it together.
* ``compared``: while state moved beside before; ``told``, ``picture``: the same for programs and eyes.

It needs the packages of ``headrace[nexmark]``.
"""
