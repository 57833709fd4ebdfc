"""People: the first event of each round."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.nexmark.columns import FIRST_PERSON, TIME, EventColumns, not_null
from headrace.nexmark.draws import I64
from headrace.nexmark.timeline import Kind

STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = [
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland",
    "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
]  # fmt: skip
FIRST_NAMES = [
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter",
]  # fmt: skip
LAST_NAMES = [
    "Shultz",
    "Abrams",
    "Spencer",
    "White",
    "Bartels",
    "Walton",
    "Smith",
    "Jones",
    "Noris",
]
#: Mean length of ``extra``, and its spread: the rest of 200 bytes, and a fifth of it more or less.
_EXTRA, _EXTRA_SPREAD = 137, 27


class People(EventColumns):
    """People who sell and bid."""

    kind = Kind.PERSON
    schema = not_null(
        {
            "event": pa.int64(),
            "id": pa.int64(),
            "name": pa.string(),
            "email_address": pa.string(),
            "credit_card": pa.string(),
            "city": pa.string(),
            "state": pa.string(),
            "date_time": TIME,
            "extra": pa.string(),
        }
    )

    def make_id(self) -> I64:
        """Return the ids. People are numbered in the order of their events."""
        return FIRST_PERSON + np.arange(self.first, self.last)

    def make_name(self) -> pa.Array:
        """Return names. There are few different names, so many people share one."""
        return _full_names().take(pa.array(self._below(len(_full_names()), "name")))

    def make_email_address(self) -> pa.Array:
        """Return email addresses."""
        name, domain = self._texts("name at", 5, 2), self._texts("domain", 4, 1)
        return pc.binary_join_element_wise(
            name, pc.binary_join_element_wise(domain, "com", "."), "@"
        )

    def make_credit_card(self) -> pa.Array:
        """Return numbers of sixteen digits, in groups of four."""
        number = self._below(10**16, "credit card")
        groups = [_four_digits().take(pa.array(number // 10**at % 10_000)) for at in (12, 8, 4, 0)]
        return pc.binary_join_element_wise(*groups, " ")

    def make_city(self) -> pa.Array:
        """Return cities."""
        return pa.array(CITIES).take(pa.array(self._below(len(CITIES), "city")))

    def make_state(self) -> pa.Array:
        """Return states. A city may be in any of them."""
        return pa.array(STATES).take(pa.array(self._below(len(STATES), "state")))

    def make_extra(self) -> pa.Array:
        """Return texts that fill records up to the model's length."""
        return self._texts("extra", _EXTRA, _EXTRA_SPREAD)


@lru_cache(maxsize=1)
def _four_digits() -> pa.Array:
    return pa.array([f"{number:04}" for number in range(10_000)])


@lru_cache(maxsize=1)
def _full_names() -> pa.Array:
    return pa.array([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])
