"""Opening files by names that others may have made: what is there need not be a file."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


class NotRegular(OSError):
    """What is there is no regular file: a directory, a pipe, a socket or a device."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to be read.

    Raises:
        NotRegular: for anything else. (Who opens a pipe to read it would wait for one who writes.)
        OSError: when nothing is there, or it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # so says a socket
            raise _not_regular(path) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_regular(path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _not_regular(path: str | os.PathLike[str]) -> NotRegular:
    return NotRegular(errno.EINVAL, "it is no regular file", os.fspath(path))
