"""Opens files by names that others may have created: what is there need not be a regular file."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


class NotRegular(OSError):
    """A name is not that of a regular file, but of a directory, a pipe, a socket or a device."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        NotRegular: for anything else. (Opening a pipe would wait for a process that writes to it.)
        OSError: when the file does not exist, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # this is the error for a socket
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
    return NotRegular(errno.EINVAL, "it is not a regular file", os.fspath(path))
