"""How the virtual machines of the tests start."""

from __future__ import annotations

import sys
from pathlib import Path

#: They live for seconds or minutes. What optimises them for hours takes half of the processor time of a
#: test on a cluster, and slows whatever runs beside it.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: What Spark loads, as ``scripts/share_java_classes.py`` has written it. Java passes over an archive of
#: other jars.
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def options() -> str:
    """Return the options of Java."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else QUICK
