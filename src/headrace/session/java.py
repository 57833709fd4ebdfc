"""The Java that Spark runs on. Without one, starting a session fails with many lines of others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import SessionUnsuitable

_REMEDY = (
    "install a JDK, version 17 or newer, and set JAVA_HOME to its folder or put its java into PATH; or run "
    "without Spark, with runner='inline' (--runner inline)"
)


def check_java(environ: Mapping[str, str] = os.environ) -> None:
    """Check that there is a Java where Spark looks for it: in JAVA_HOME, or else in PATH.

    Raises:
        SessionUnsuitable: if there is none.
    """
    home = environ.get("JAVA_HOME")
    if home and shutil.which("java", path=str(Path(home) / "bin")) is None:
        raise SessionUnsuitable(
            f"Spark needs Java, and JAVA_HOME={home} has no bin/java", remedy=_REMEDY
        )
    if not home and shutil.which("java", path=environ.get("PATH", os.defpath)) is None:
        raise SessionUnsuitable(
            "Spark needs Java, and there is none: JAVA_HOME is not set, and PATH has no java",
            remedy=_REMEDY,
        )
