"""Where a session that Headrace starts writes its log: a folder for each process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.storage.local import make_directory, private

#: How many folders of processes that have ended are kept.
KEPT = 20
_FOLDER = re.compile(r"(\d{8}T\d{6})-(\d{1,9})")
#: What log4j calls our levels.
_LEVELS = {"error": "error", "warning": "warn", "info": "info", "debug": "debug"}
_CONFIGURATION = """\
status = error
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.filePermissions = rw-------
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSSXXX}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


class LogFiles:
    """The log files of a session.

    Attributes:
        spark: Spark's log. The newest 80 MB are kept.
        output: what else the JVM prints as it starts and ends.
        configuration: the configuration of log4j.

    Args:
        folder: their folder; see :func:`new_folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.spark = folder / "spark.log"
        self.output = folder / "output.log"
        self.configuration = folder / "log4j2.properties"

    def configure(self, level: str) -> None:
        """Write the configuration of log4j."""
        text = _CONFIGURATION.format(level=_LEVELS[level], path=_escaped(str(self.spark)))
        with open(self.configuration, "w", encoding="ascii", opener=private) as file:
            file.write(text)


def _escaped(text: str) -> str:
    """Return a text as a value of a properties file in which log4j replaces nothing."""
    text = text.replace("\\", "\\\\").replace("$", "$$")
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


def new_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Make the folder of this process, and delete the oldest of those that have ended.

    It is where programs keep their logs: in ``$XDG_STATE_HOME``, by default ``~/.local/state``. If
    that cannot be written, it is in the directory for temporary files.
    """
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}"
    try:
        home = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        root = Path(home) / "headrace" / "spark"
        make_directory(root)
        _delete_old(root)
        folder = root / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # there is no home, or it is read-only
        pass
    return Path(tempfile.mkdtemp(prefix="headrace-spark-"))


def _delete_old(root: Path) -> None:
    found = sorted(path for path in root.iterdir() if _FOLDER.fullmatch(path.name))
    ended = [path for path in found if not _is_alive(int(path.name.rpartition("-")[2]))]
    for path in ended[: max(0, len(ended) - KEPT + 1)]:
        with contextlib.suppress(OSError):
            shutil.rmtree(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True
