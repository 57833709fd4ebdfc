"""A real S3 server: S3Proxy, a process on a free loopback port, over a directory.

It checks signatures, and creates conditionally and atomically (other servers for tests look first and
write then: of many concurrent creates several win). Its jar is fetched from Maven Central by version and
checksum; it needs the Java that Spark needs.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.jars import Jar, JavaServer

JAR = Jar(
    "org.gaul",
    "s3proxy",
    "4.1.0",
    classifier="jar-with-dependencies",
    sha256="a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d",
)
BUCKET = "headrace-tests"


@dataclass
class S3Server:
    """A server that runs, and what a client needs to know."""

    port: int
    process: JavaServer
    _numbers: itertools.count = field(default_factory=itertools.count)

    @property
    def environment(self) -> dict[str, str]:
        """What the environment of a client says."""
        return client_environment(self.port)

    def location(self) -> str:
        """Return a location that nobody has used yet."""
        return f"s3://{BUCKET}/{os.getpid()}/{next(self._numbers)}"


def client_environment(port: int) -> dict[str, str]:
    """Return what the environment of a client of a server at a port of this host says."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "not-so-secret",
    }


def start(folder: Path, *, authorization: str = "aws-v4") -> S3Server:
    """Start a server over a directory.

    Args:
        folder: where its objects are.
        authorization: ``none`` for a server that believes everybody, whatever was signed.
    """
    (folder / "objects" / BUCKET).mkdir(parents=True)
    keys = client_environment(0)
    settings = {
        "s3proxy.endpoint": "http://127.0.0.1:0",
        "s3proxy.authorization": authorization,
        "s3proxy.identity": keys["AWS_ACCESS_KEY_ID"],
        "s3proxy.credential": keys["AWS_SECRET_ACCESS_KEY"],
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(folder / "objects"),
    }
    (folder / "settings").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    main = ["org.gaul.s3proxy.Main", "--properties", str(folder / "settings")]
    process = JavaServer([JAR.fetch()], main, folder / "log")
    port = process.said(r"Started .*ServerConnector.*\{127\.0\.0\.1:(\d+)\}")
    return S3Server(int(port), process)
