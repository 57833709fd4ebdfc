"""Bounds on numbers and names that are read from storage.

The types of this module are used in the declarations of what is stored. They are checked where
stored bytes are decoded, and nowhere else. So nothing that is read is larger than what could have
been written.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

#: Highest step number: one step per microsecond for thirty years.
MOST_STEPS = 10**15
#: Highest count of records or bytes.
MOST_COUNTED = 1 << 53
#: Most workers that a layout can have: an owner is written as two bytes.
MOST_WORKERS = 1 << 16
#: Most bins that a layout can have.
MOST_BINS = 1 << 22
#: Most layers.
MOST_LAYERS = 1 << 16

#: The number of a step, an epoch, or a sequence number; -1 for none.
StepNumber = Annotated[int, Meta(ge=-1, le=MOST_STEPS)]
#: A count of records, bytes or other things.
Whole = Annotated[int, Meta(ge=0, le=MOST_COUNTED)]
#: A count; -1 if it is not known.
WholeOrNot = Annotated[int, Meta(ge=-1, le=MOST_COUNTED)]
#: A time or a duration in microseconds, in 64 bits.
Micros = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
#: The number of a layer, and of a worker; -1 for no worker.
LayerNumber = Annotated[int, Meta(ge=0, le=MOST_LAYERS)]
WorkerNumber = Annotated[int, Meta(ge=-1, lt=MOST_WORKERS)]
#: A count of workers.
Workers = Annotated[int, Meta(ge=0, le=MOST_WORKERS)]
#: A count of bins.
Bins = Annotated[int, Meta(ge=0, le=MOST_BINS)]
#: A count of leading bits of a hash.
Bits = Annotated[int, Meta(ge=0, le=64)]
#: A bin of delays; -1 for records without delay.
DelayBin = Annotated[int, Meta(ge=-1, le=10_000)]
#: A hash, in hexadecimal.
HashText = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
#: A count of slices.
SliceCount = Annotated[int, Meta(ge=1, le=4_096)]

_PACK = r"manifests/[0-9]{12,18}"
_FILE = (
    r"(?:runs|outputs|streams|soft/[0-9a-f]{1,32}/l[0-9]{1,9}-w[0-9]{1,9})"
    r"/[A-Za-z0-9][A-Za-z0-9.-]{0,127}"
)
#: A file that a step has made: in one of these folders, under a name that an attempt has made.
FileName = Annotated[str, Meta(pattern=rf"\A{_FILE}\Z", max_length=256)]
#: A manifest that has small files of its step packed into it.
PackName = Annotated[str, Meta(pattern=rf"\A{_PACK}\Z")]
#: Either of them.
PlaceName = Annotated[str, Meta(pattern=rf"\A(?:{_FILE}|{_PACK})\Z", max_length=256)]
