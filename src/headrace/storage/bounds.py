"""What numbers and names that come out of storage can be.

A type of this module stands in the declaration of what is stored. It is checked where stored bytes
are decoded, and nowhere else: so nothing that is read is larger than what could have been written.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

#: The highest step; a step a microsecond for thirty years.
MOST_STEPS = 10**15
#: The highest count of records, or of bytes.
MOST_COUNTED = 1 << 53
#: The highest number of workers that a layout can have: an owner is written as two bytes.
MOST_WORKERS = 1 << 16
#: The highest number of bins that a layout can have.
MOST_BINS = 1 << 22
#: The highest number of layers.
MOST_LAYERS = 1 << 16

#: A step, an epoch, or a number of order; -1 where there is none.
StepNumber = Annotated[int, Meta(ge=-1, le=MOST_STEPS)]
#: How many records, bytes or other things there are.
Whole = Annotated[int, Meta(ge=0, le=MOST_COUNTED)]
#: The same, -1 where it is not known.
WholeOrNot = Annotated[int, Meta(ge=-1, le=MOST_COUNTED)]
#: A time, or a duration, in microseconds; what 64 bits hold.
Micros = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
#: Which layer, and which worker.
LayerNumber = Annotated[int, Meta(ge=0, le=MOST_LAYERS)]
WorkerNumber = Annotated[int, Meta(ge=-1, lt=MOST_WORKERS)]
#: How many workers.
Workers = Annotated[int, Meta(ge=0, le=MOST_WORKERS)]
#: How many bins.
Bins = Annotated[int, Meta(ge=0, le=MOST_BINS)]
#: How many leading bits of a hash.
Bits = Annotated[int, Meta(ge=0, le=64)]
#: A bin of delays; -1 for those that are not behind at all.
DelayBin = Annotated[int, Meta(ge=-1, le=10_000)]
#: How many slices.
SliceCount = Annotated[int, Meta(ge=1, le=4_096)]

#: A file that a step has made: in one of these folders, under a name of a try's making.
FileName = Annotated[
    str,
    Meta(
        pattern=r"\A(?:runs|outputs|streams|soft/[0-9a-f]{1,32}/l[0-9]{1,9}-w[0-9]{1,9})"
        r"/[A-Za-z0-9][A-Za-z0-9.-]{0,127}\Z",
        max_length=256,
    ),
]
