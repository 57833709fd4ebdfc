"""The key space: a stable 64-bit hash, bins as prefixes of it, and layouts of bins over workers."""

from headrace.keyspace.hashing import hash_columns, hash_key
from headrace.keyspace.layout import Bin, Layout
from headrace.keyspace.planner import contiguous

__all__ = ["Bin", "Layout", "contiguous", "hash_columns", "hash_key"]
