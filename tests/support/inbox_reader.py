"""A process that reads an inbox, and cleans it, until its producers have finished.

usage: inbox_reader.py STORAGE INBOX OUT PRODUCER...
"""

from __future__ import annotations

import sys

import headrace as hr
from tests.support.inboxes import pipeline


def main() -> None:
    storage, inbox, out, *names = sys.argv[1:]
    drawn = pipeline(inbox, hr.sinks.Files(out), producers=names, clean=True)
    settings = hr.Settings(limit=hr.Limit(7, 1 << 20), base_every=4, retain_steps=1, slices=4)
    with hr.run(drawn, storage=storage, runner="inline", settings=settings) as job:
        job.drain()


if __name__ == "__main__":
    main()
