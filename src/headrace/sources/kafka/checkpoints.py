"""How far a query of Structured Streaming has read topics, by its checkpoint.

A checkpoint has a file for each batch: ``offsets/N`` is written before the batch runs, and says up
to where it reads each source. ``commits/N`` is written when the batch is done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from headrace.errors import Damaged, NotFound, PipelineError
from headrace.storage import Store, open_store

#: Topic → partition → the offset of the next record.
Offsets = dict[str, dict[int, int]]

#: What Spark writes for a source that the batch has nothing of.
_NOTHING = "-"
_BY_HAND = "give the offsets yourself: start={topic: {partition: offset}}"


def offsets_of(
    checkpoint: str | os.PathLike[str] | Store,
    topics: str | Sequence[str] | re.Pattern[str] | None = None,
) -> Offsets:
    """Return where a query goes on in its topics, after the last batch that is committed.

    Args:
        checkpoint: the directory that is the query's ``checkpointLocation``, as
            :func:`headrace.storage.open_store` takes it.
        topics: the topics to return, or a pattern of names; by default all that the query reads.

    Raises:
        NotFound: if no batch is committed there.
        Damaged: if its offsets cannot be read.
        PipelineError: for topics that the query does not read, or reads twice to different offsets;
            and for a checkpoint of a later version.
    """
    store = open_store(checkpoint).uncached
    batch = _last_committed(store)
    name = f"offsets/{batch}"
    place = f"{store.location}/{name}"
    try:
        text = store.read(name).decode()
    except NotFound as error:
        raise NotFound(
            f"batch {batch} is committed, and its offsets are not there",
            place=place,
            remedy="restore the checkpoint from a copy",
        ) from error
    except UnicodeDecodeError as error:
        raise _damaged(str(error), place) from error
    found: Offsets = {}
    for read in _by_source(text, place):
        for topic, of in read.items():
            if _is_wanted(topic, topics) and found.setdefault(topic, of) != of:
                raise PipelineError(
                    f"the query reads topic {topic!r} twice, and has come to different offsets",
                    place=place,
                    remedy=_BY_HAND,
                )
    _check_found(found, topics, text, place)
    return found


def _last_committed(store: Store) -> int:
    names = (name.removeprefix("commits/") for name in store.list("commits/"))
    batches = [int(name) for name in names if name.isdecimal()]
    if not batches:
        raise NotFound(
            "no batch of a query is committed there",
            place=store.location,
            remedy="give the directory that is the checkpointLocation of the query",
        )
    return max(batches)


def _by_source(text: str, place: str) -> Iterator[Offsets]:
    """Yield the offsets of each source of a batch that reads Kafka.

    The first line is the version, and the second is about the batch. Then there is a line for each
    source. Since version 2 it begins with the source's name.
    """
    version, *lines = text.splitlines() or [""]
    if version not in ("v1", "v2"):
        if not re.fullmatch(r"v\d+", version):
            raise _damaged(f"it begins with {version[:20]!r}, which is no version", place)
        raise PipelineError(
            f"the offsets are written in version {version[1:]}, of which nothing is known here",
            place=place,
            remedy=_BY_HAND,
        )
    if len(lines) < 2:
        raise _damaged("it ends before the offsets", place)
    for line in lines[1:]:
        offset = line if version == "v1" else line.partition(":")[2]
        if offset == _NOTHING:
            continue
        try:
            msgspec.json.decode(offset)
        except msgspec.DecodeError as error:
            raise _damaged(str(error), place) from error
        try:
            yield msgspec.json.decode(offset, type=Offsets)
        except msgspec.ValidationError:
            continue  # another kind of source


def _damaged(why: str, place: str) -> Damaged:
    return Damaged(
        f"the offsets of a batch cannot be read: {why}",
        place=place,
        remedy="restore the checkpoint from a copy",
    )


def _is_wanted(topic: str, topics: str | Sequence[str] | re.Pattern[str] | None) -> bool:
    if isinstance(topics, re.Pattern):
        return topics.fullmatch(topic) is not None
    return topics is None or topic in _names(topics)


def _names(topics: str | Sequence[str]) -> Sequence[str]:
    return (topics,) if isinstance(topics, str) else topics


def _check_found(
    found: Mapping[str, Mapping[int, int]],
    topics: str | Sequence[str] | re.Pattern[str] | None,
    text: str,
    place: str,
) -> None:
    """Check that the query reads the topics that were asked for, and some topic at all."""
    if isinstance(topics, re.Pattern) or topics is None:
        missing = [] if found else ["a topic" if topics is None else f"one of {topics.pattern!r}"]
    else:
        missing = [f"topic {name!r}" for name in _names(topics) if name not in found]
    if missing:
        read = sorted({topic for of in _by_source(text, place) for topic in of})
        raise PipelineError(
            f"the query does not read {', '.join(missing)} of Kafka",
            place=place,
            remedy=f"it reads: {', '.join(read)}"
            if read
            else "give the checkpoint of another query",
        )
