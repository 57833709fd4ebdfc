"""Concatenation of Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.errors import BadInput


def as_one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches, at least one, concatenated into one.

    Raises:
        BadInput: if a column of the result has more than 2 GiB of text or bytes, which an Arrow
            batch cannot hold. (Concatenated as a table, it would be several batches again.)
    """
    if len(batches) == 1:
        return batches[0]
    try:
        return pa.concat_batches(batches)
    except pa.ArrowInvalid as error:
        raise BadInput(
            f"a worker has more than 2 GiB of one column to work on at once: {error}",
            remedy="let steps be smaller (limit=), or more workers share them; nothing of this step "
            "was committed",
        ) from error
