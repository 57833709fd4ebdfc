"""Opens, reads and goes on with a storage, and ends with an error if anything of that executes code.

usage: python -m tests.faults.hostile.restoring STORAGE [SPOILT]

Another copy of it is gone on with before, so that what is imported and made ready at first use is there.
With SPOILT the second one is given a codec that unpickles, which must be noticed.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import tempfile
import typing
from pathlib import Path
from typing import Any

from headrace.checkpoints.catalog import Checkpoints
from headrace.storage import LocalStore
from tests.formats import kept_pipeline

#: What the interpreter tells of before it executes something that is data until then.
FORBIDDEN = {
    "compile",
    "exec",
    "import",
    "marshal.load",
    "marshal.loads",
    "os.exec",
    "os.posix_spawn",
    "os.system",
    "pickle.find_class",
    "subprocess.Popen",
    "ctypes.dlopen",
    "code.__new__",
}


class Executed(BaseException):
    """Something was about to be executed; nothing catches this."""


def forbid() -> None:
    """Let this process execute nothing from now on.

    But for the annotations of the user's types, which are text in the code, and which ``typing`` looks at.
    """

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in FORBIDDEN and sys._getframe(1).f_code.co_filename != typing.__file__:
            raise Executed(f"{event} {args!r:.200}")

    sys.addaudithook(hook)


def restore(storage: str) -> None:
    """Verify and read all checkpoints, and run the pipeline on to its end."""
    checkpoints = Checkpoints(LocalStore(storage))
    assert list(checkpoints.verify()) == []
    for step in checkpoints.versions():
        checkpoint = checkpoints.open(step)
        for name, of in checkpoint.components.items():
            for section in of.sections:
                checkpoint.read(name, section).to_pylist()
    with kept_pipeline.taken_over(storage) as t:
        json.dumps(kept_pipeline.gone_on_with(t))


class Unpickling:
    """What no codec may be."""

    def encode(self, value: str) -> bytes:
        return pickle.dumps(Path(value))

    def decode(self, data: bytes) -> str:
        return str(pickle.loads(data)) if data.startswith(b"\x80") else ""


def main() -> None:
    storage, spoilt = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        before, after = (
            str(shutil.copytree(storage, Path(folder) / name)) for name in ("before", "after")
        )
        restore(before)
        forbid()
        if spoilt:
            Unpickling().decode(Unpickling().encode("x"))
        restore(after)
        print("nothing was executed")


if __name__ == "__main__":
    main()
