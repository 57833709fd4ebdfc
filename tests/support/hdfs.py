"""A real HDFS: a NameNode and a DataNode in one process, on free loopback ports.

Their jar is fetched from Maven Central by version and checksum; the rest of Hadoop, and the logging, are in
the jars that PySpark brings. It needs the Java that Spark needs.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.support.jars import Jar, JavaServer

#: The version must be that of PySpark's own Hadoop jars.
JAR = Jar(
    "org.apache.hadoop",
    "hadoop-client-minicluster",
    "3.5.0",
    sha256="06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
)
_SPARKS = [
    "hadoop-client-api",
    "hadoop-client-runtime",
    "slf4j-api",
    "log4j-",
    "jcl-over-slf4j",
    "commons-cli",
    "jakarta.servlet-api",
    "javax.servlet-api",
]
_LOGGING = """\
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%p %c{1}: %m%n%throwable
"""


@dataclass
class Hdfs:
    """A file system that runs."""

    port: int
    process: JavaServer
    _numbers: itertools.count = field(default_factory=itertools.count)

    def location(self) -> str:
        """Return a location that nobody has used yet."""
        return f"webhdfs://127.0.0.1:{self.port}/tests/{os.getpid()}/{next(self._numbers)}"


def start(folder: Path) -> Hdfs:
    """Start a file system of its own in a directory."""
    conf = folder / "conf"
    conf.mkdir()
    (conf / "log4j2.properties").write_text(_LOGGING)
    sparks = Path(pyspark.__file__).parent / "jars"
    jars = [path for start in _SPARKS for path in sorted(sparks.glob(f"{start}*.jar"))]
    # (a writer looks after 10 ms, not after 400, whether its last block has arrived)
    main = [
        "org.apache.hadoop.test.MiniDFSClusterManager",
        "-format",
        "-datanodes",
        "1",
        "-nnport",
        "0",
        "-httpport",
        "0",
        "-D",
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms=10",
        "-D",
        f"hdfs.minidfs.basedir={folder / 'data'}",
        "-D",
        f"hadoop.tmp.dir={folder / 'tmp'}",
    ]
    process = JavaServer([conf, JAR.fetch(), *jars], main, folder / "log")
    process.said(r"(Started MiniDFSCluster)")
    return Hdfs(
        int(process.said(r"Jetty bound to port (\d+)")), process
    )  # (the NameNode's is first)
