"""Servers for tests that run on the JVM: fetched once by version and checksum, started on free ports."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.support import processes

#: What was fetched is kept here; git ignores it.
TOOLS = processes.ROOT / ".tools"
#: Another Maven repository, where this one cannot be reached.
REPOSITORY = os.environ.get("HEADRACE_MAVEN", "https://repo1.maven.org/maven2")


#: How a program for a few seconds is started soonest.
_QUICK = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


@dataclass(frozen=True)
class Jar:
    """A file of a Maven repository, and what it must be."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""

    def fetch(self) -> Path:
        """Return where it is; fetched if it is not there yet."""
        name = f"{self.artifact}-{self.version}{self.classifier and '-'}{self.classifier}.jar"
        path = TOOLS / name
        if not path.exists():
            folder = f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}"
            self._fetch(f"{REPOSITORY}/{folder}/{name}", path)
        return path

    def _fetch(self, url: str, path: Path) -> None:
        TOOLS.mkdir(exist_ok=True)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            with urllib.request.urlopen(url, timeout=120) as answer, open(aside, "wb") as file:
                shutil.copyfileobj(answer, file)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise RuntimeError(
                f"the test server {self.artifact} could not be fetched from {url} ({error}); put it "
                f"into {TOOLS}, or set HEADRACE_MAVEN to a Maven repository that can be reached"
            ) from error
        found = hashlib.sha256(aside.read_bytes()).hexdigest()
        if found != self.sha256:
            aside.unlink()
            raise RuntimeError(f"{url} has the SHA-256 {found}, not {self.sha256}")
        os.replace(aside, path)


def java() -> str:
    """Return the java that Spark uses, too."""
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    if found is None:
        raise RuntimeError("these tests need Java; see scripts/find-java.sh")
    return found


class JavaServer:
    """A Java program that runs until it is stopped.

    Args:
        classpath: jars and directories.
        main: its class, and arguments.
        log: where its output goes.
    """

    def __init__(self, classpath: list[Path], main: list[str], log: Path) -> None:
        self._log = log
        path = os.pathsep.join(map(str, classpath))
        command = [java(), *_QUICK, "-cp", path, *main]
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def said(self, pattern: str) -> str:
        """Wait until it says something; return the pattern's first group."""
        found: list[str] = []

        def heard() -> bool:
            found[:] = re.findall(pattern, self._log.read_text(errors="replace"))
            return bool(found)

        try:
            heard_it = processes.wait_for(heard, process=self._process, timeout=60)
        except TimeoutError:
            heard_it = False
        if not heard_it:
            self.stop()
            raise RuntimeError(
                f"the test server did not say {pattern!r}:\n{self._log.read_text()[-4000:]}"
            )
        return found[0]

    def stop(self) -> None:
        """End it at once: what it holds is for tests."""
        self._process.kill()
        self._process.wait()
