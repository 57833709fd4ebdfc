"""How much work each bin and worker has, as measured."""
