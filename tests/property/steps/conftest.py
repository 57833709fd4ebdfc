"""All of this is true whether state is loaded bin by bin or at once."""

from __future__ import annotations

from tests.support.state_loading import how_state_is_loaded

__all__ = ["how_state_is_loaded"]
