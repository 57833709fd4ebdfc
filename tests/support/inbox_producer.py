"""A process that appends batches to an inbox. Used by tests/faults/kills/test_inbox_processes.py.

usage: inbox_producer.py INBOX NAME BATCHES [--stall-at SEQUENCE]
"""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

from headrace.sources.inbox.names import batch_name
from tests.support.inboxes import items, producer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("inbox")
    parser.add_argument("name")
    parser.add_argument("batches", type=int)
    parser.add_argument("--stall-at", type=int, default=-1)
    chosen = parser.parse_args()
    link = os.link

    def stalling_link(source: Any, target: Any, **more: Any) -> None:
        if str(target).endswith(batch_name(chosen.name, chosen.stall_at)):
            os.kill(os.getpid(), signal.SIGSTOP)
        link(source, target, **more)

    os.link = stalling_link
    appends = producer(chosen.inbox, chosen.name)
    for sequence in range(appends.next, chosen.batches):
        appends.append(items(chosen.name, sequence, 3), sequence=sequence)
    appends.finish()
    print("finished", flush=True)


if __name__ == "__main__":
    main()
