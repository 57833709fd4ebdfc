"""In the text of a query, subqueries stand for the current time, and for nothing else."""

from __future__ import annotations

import pytest

from headrace.sql.translation.clock import clocked

NOW, TODAY = "(SELECT at FROM headrace_now)", "(SELECT at FROM headrace_today)"
LOCAL = "(SELECT at FROM headrace_local)"


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT now()", f"SELECT {NOW}"),
        ("a > NOW ( ) - b", f"a > {NOW} - b"),
        ("current_timestamp", NOW),
        ("Current_Timestamp()", NOW),
        ("current_date>=d", f"{TODAY}>=d"),
        ("curdate() + 1", f"{TODAY} + 1"),
        ("localtimestamp()", LOCAL),
        ("'it''s now()' < now()", f"'it''s now()' < {NOW}"),
        (r"'\'now()' < now()", rf"'\'now()' < {NOW}"),
        (r"r'\' < now()", rf"r'\' < {NOW}"),
        ('"now()" < now()', f'"now()" < {NOW}'),
        ("`now()` < now()", f"`now()` < {NOW}"),
        ("a -- now()\n< now()", f"a -- now()\n< {NOW}"),
        ("a /* now()\nnow() */ < now()", f"a /* now()\nnow() */ < {NOW}"),
    ],
)
def test_functions_of_the_current_time_are_replaced(sql: str, found: str) -> None:
    assert clocked(sql) == found


@pytest.mark.parametrize(
    "sql", ["now", "know()", "now(1)", "t.current_date", "current_dates", "curdate", "my_now()"]
)
def test_other_names_are_left_alone(sql: str) -> None:
    assert clocked(sql) == sql
