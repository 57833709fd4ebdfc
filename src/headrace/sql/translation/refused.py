"""What no view can have, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.errors import PipelineError

#: What no view can have, and why.
REFUSED: Final = {
    **dict.fromkeys(
        (
            "CurrentTimestamp",
            "CurrentDate",
            "Now",
            "LocalTimestamp",
            "CurrentTime",
            "CurrentBatchTimestamp",
        ),
        (
            "the current time changes without a change of any table, so the view would be wrong "
            "at once",
            "compare a column with now(), current_timestamp, localtimestamp or current_date in WHERE "
            "or HAVING",
        ),
    ),
    **dict.fromkeys(
        ("Rand", "Randn", "RandStr", "Uniform", "Uuid", "Shuffle", "Randn", "RDG"),
        (
            "chance gives another result each time it is computed",
            "compute the value before the row gets into the table",
        ),
    ),
    **dict.fromkeys(
        (
            "MonotonicallyIncreasingID",
            "SparkPartitionID",
            "InputFileName",
            "InputFileBlockStart",
            "InputFileBlockLength",
        ),
        (
            "it tells how a batch was cut, and a view does not depend on that",
            "number rows with row_number() over an order",
        ),
    ),
    **dict.fromkeys(
        ("CurrentUser", "CurrentDatabase", "CurrentCatalog", "CurrentTimeZone"),
        (
            "it depends on the session, and a view does not",
            "write the value into the query",
        ),
    ),
    **dict.fromkeys(
        ("PythonUDF", "ScalaUDF", "PythonUDAF", "PythonUDTF", "UserDefinedPythonFunction"),
        (
            "it is not known to give the same result for the same row",
            "apply the function to the stream before it becomes a table",
        ),
    ),
    **dict.fromkeys(
        ("UnionLoop", "UnionLoopRef", "RecursiveCTE"),
        (
            "a recursive query needs a loop, and a pipeline has none",
            "write out as many joins as the depth needs",
        ),
    ),
    **dict.fromkeys(
        ("Sample",),
        (
            "chance gives another result each time it is computed",
            "filter by a hash of a column",
        ),
    ),
}


def check_classes(classes: Iterable[str], sql: str) -> None:
    """Refuse a query with something that cannot be maintained.

    Args:
        classes: the names of Catalyst's classes in the analysed plan.
        sql: the query, for the error.

    Raises:
        PipelineError: it names the function or clause, and the reason.
    """
    for name in sorted(REFUSED.keys() & set(classes)):
        reason, remedy = REFUSED[name]
        raise PipelineError(f"a view cannot have {name}: {reason}", place=sql, remedy=remedy)
