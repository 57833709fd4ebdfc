"""How many examples the properties try: few in a fast run, some in ``make test``, all in ``make soak``.

Each run draws new ones. What a property asks for in its own settings it gets in a thorough run:
``pytest --hypothesis-profile=thorough``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

#: At most so many examples of each property, by the name of Hypothesis's profile.
MOST = {"short": 7, "fast": 7}
#: Of a state machine, at most so many runs, and steps of each. These take longer.
MOST_RUNS = {"short": 3, "fast": 3}
MOST_STEPS = {"short": 30, "fast": 20}


def register_profiles() -> None:
    """Tell Hypothesis of the profiles, and load the usual one.

    None has a deadline, since machines are noisy, and all show how a failure is made again.
    """
    settings.register_profile(
        "thorough",
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    # For those who want to know whether anything is found, and not its smallest form:
    unshrunk = [Phase.explicit, Phase.generate]
    settings.register_profile("unshrunk", settings.get_profile("thorough"), phases=unshrunk)
    settings.register_profile("fast", settings.get_profile("unshrunk"))
    settings.register_profile("short", settings.get_profile("thorough"))
    settings.load_profile("short")


def profile() -> str:
    return settings.get_current_profile_name()


def limit(items: Iterable[pytest.Item]) -> None:
    """Let no test try more examples than the profile allows, though its own settings ask for more.

    Those that are marked ``soak`` keep theirs.
    """
    for item in items:
        if profile() not in MOST or item.get_closest_marker("soak"):
            continue
        case = getattr(getattr(item, "cls", None), "settings", None)
        function: Any = getattr(item, "obj", None)
        if isinstance(case, settings):  # of a state machine
            item.cls.settings = limited(case, MOST_RUNS)  # type: ignore[attr-defined]
        elif getattr(function, "is_hypothesis_test", False):
            known = function._hypothesis_internal_use_settings
            function._hypothesis_internal_use_settings = limited(known, MOST)


def limited(known: settings, most_of: dict[str, int]) -> settings:
    """Return settings with fewer examples, and fewer steps of a state machine. A fast run is unshrunk."""
    most = min(known.max_examples, most_of[profile()])
    steps = min(known.stateful_step_count, MOST_STEPS[profile()])
    phases = settings.get_profile("fast").phases if profile() == "fast" else known.phases
    return settings(known, max_examples=most, stateful_step_count=steps, phases=phases)
