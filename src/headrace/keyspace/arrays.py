"""Types of arrays of hashes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Hashes of keys, or positions in the hash space.
U64 = npt.NDArray[np.uint64]
