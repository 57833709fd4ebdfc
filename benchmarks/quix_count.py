"""The count from topic to topic in Quix Streams, exactly once. Run by a Python that has quixstreams.

Records have no keys, so they are grouped, which goes through a topic. Each record that is counted is
produced, as users of Quix Streams have it.

usage: quix_count.py SERVERS INTO OUT FOLDER SECONDS_BETWEEN_COMMITS
"""

from __future__ import annotations

import sys
from typing import Any


def counted(value: Any, state: Any) -> Any:
    count = state.get("count", 0) + 1
    state.set("count", count)
    return {"key": value["key"], "count": count, "at": value["at"]}


def main(servers: str, into: str, out: str, folder: str, interval_s: str) -> None:
    from quixstreams import Application

    app = Application(
        broker_address=servers,
        consumer_group=f"quix-{into}",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        state_dir=folder,
        commit_interval=float(interval_s),
        consumer_extra_config={"fetch.wait.max.ms": 5},
    )
    records = app.dataframe(app.topic(into, value_deserializer="json", key_deserializer="bytes"))
    counts = records.group_by(lambda value: str(value["key"]), name="key").apply(
        counted, stateful=True
    )
    counts.to_topic(app.topic(out, value_serializer="json"))
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
