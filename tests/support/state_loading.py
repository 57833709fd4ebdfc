"""All of this is true whether state is loaded bin by bin or at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.state import bins


@pytest.fixture(autouse=True, scope="module", params=[0, bins._SMALL], ids=["by bin", "at once"])
def how_state_is_loaded(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bins, "_SMALL", request.param)
        yield
