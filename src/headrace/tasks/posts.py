"""The posts of a columnar computation in a step: those that were sent, are due, or wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.computation.batches import KeyedBatch, grouped, keys_apart
from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.ordering import order_by_hash
from headrace.pipeline import Node
from headrace.runfiles.batches import as_one_batch
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.state.buffer import by_time, ranks, sequences
from headrace.state.tables.table_set import TableSet
from headrace.tasks.emitter import Emitter
from headrace.tasks.routing import key_names, stream_schema


class BatchPosts:
    """The posts of one columnar computation on one worker.

    Attributes:
        streams: the collector of each stream of posts.
    """

    def __init__(self, node: Node, state: TableSet) -> None:
        self._node = node
        self._state = state
        self.streams = {name: Emitter(node, name, s) for name, s in node.posts.items()}
        self._later: dict[str, list[pa.RecordBatch]] = {name: [] for name in node.posts}

    def due(self, until: int) -> Iterator[KeyedBatch]:
        """Yield the posts that are due, stream by stream.

        A key's posts are in order of time; at equal times, in the order in which they were sent.
        Bins with posts that are due must have been loaded.
        """
        for name, buffer in self._state.posts.items():
            rows = [] if (kept := buffer.take(until)) is None else [self._plain(name, kept)]
            sent = self.streams[name].take()
            if sent is not None:
                is_due = sent.column(TIMESTAMP_COLUMN).to_numpy() <= until
                rows.append(sent.filter(pa.array(is_due)))
                self._later[name].append(sent.filter(pa.array(~is_due)))
            due = [part for part in rows if part.num_rows]
            if due:
                yield self._batch(name, by_time(as_one_batch(due)))

    def _plain(self, name: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = stream_schema(self._node.posts[name])
        return pa.RecordBatch.from_arrays([rows.column(n) for n in schema.names], schema=schema)

    def _batch(self, name: str, rows: pa.RecordBatch) -> KeyedBatch:
        node, types = self._node, self._state.key_types
        values, names = node.posts[name].values, key_names(node)
        return grouped(name, values, rows, types, names, hash_is_key=node.hash_is_key)

    def flush(self) -> int:
        """Let all posts that were sent wait, due or not.

        Returns:
            Their lowest event time, or ``MAX_TIME``.
        """
        lowest = MAX_TIME
        for name, emitter in self.streams.items():
            sent = emitter.take()
            if sent is not None:
                self._later[name].append(sent)
                lowest = min(lowest, int(sent.column(TIMESTAMP_COLUMN).to_numpy().min()))
        return lowest

    def keep(self, step: int) -> None:
        """Add the posts that wait to the state."""
        for name, later in self._later.items():
            parts = [part for part in later if part.num_rows]
            later.clear()
            if not parts:
                continue
            rows = as_one_batch(parts)
            rows = rows.take(pa.array(order_by_hash(rows.column(HASH).to_numpy())))
            columns = [rows.column(key) for key in key_names(self._node)]
            order, starts = keys_apart(rows.column(HASH).to_numpy(), columns)
            if order is not None:
                rows = rows.take(pa.array(order))
            numbers = ranks(starts, rows.num_rows)
            self._state.posts[name].add(rows, sequences(step, numbers.astype(np.int64)))
