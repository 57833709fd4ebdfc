"""Settings of all tests: Hypothesis without deadlines (machines are noisy), failures reproducible."""

from __future__ import annotations

import logging

from hypothesis import HealthCheck, settings

settings.register_profile(
    "headrace", deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
settings.load_profile("headrace")
logging.getLogger("py4j").setLevel(logging.ERROR)
