"""Z-sets: streams of rows with weights, on which relational queries are kept up to date.

* ``stream``: streams and views, and how they are built; ``tables``: where rows come from.
* ``linear``: operators without state, which run inside others.
* ``join``, ``group`` (with ``aggregates``), ``top``, ``window``, ``sets``: operators with state.
* ``lateness``: rows that come too late, and rows that are final; ``by_clock``: rows that come and go
  with the clock.
* ``transactions``: rows of several streams that belong together come in one step.
* ``operator``: what operators have in common; ``apply``: operators that keep nothing.
* ``rows``: rows with weights, consolidated and compared.

A program uses :func:`table` and the methods of :class:`ZStream`. A compiler uses the operators: each
is a computation that takes functions of :class:`Rows`, for streams that are keyed by
:class:`headrace.Hashed`.
"""

from headrace.zsets.aggregates import Aggregate, Avg, Count, Max, Min, OfRows, Sum, Variance
from headrace.zsets.apply import Apply, AsUpserts
from headrace.zsets.by_clock import ByClock
from headrace.zsets.group import Group
from headrace.zsets.join import Join
from headrace.zsets.lateness import Final, OnTime
from headrace.zsets.linear import (
    Expand,
    Linear,
    MapRows,
    Negate,
    Project,
    Select,
    Weigh,
)
from headrace.zsets.operator import Branch, Operator
from headrace.zsets.ordering import Order
from headrace.zsets.rows import WEIGHT, Rows
from headrace.zsets.sets import SetOperation
from headrace.zsets.stream import OnTimeRows, View, ZStream, table
from headrace.zsets.tables import Checked, KeyedView, Upserts
from headrace.zsets.top import Top
from headrace.zsets.transactions import Ends, Transactions, transactions
from headrace.zsets.window import Frame, Over, Window

__all__ = [
    "WEIGHT",
    "Aggregate",
    "Apply",
    "AsUpserts",
    "Avg",
    "Branch",
    "ByClock",
    "Checked",
    "Count",
    "Ends",
    "Expand",
    "Final",
    "Frame",
    "Group",
    "Join",
    "KeyedView",
    "Linear",
    "MapRows",
    "Max",
    "Min",
    "Negate",
    "OfRows",
    "OnTime",
    "OnTimeRows",
    "Operator",
    "Order",
    "Over",
    "Project",
    "Rows",
    "Select",
    "SetOperation",
    "Sum",
    "Top",
    "Transactions",
    "Upserts",
    "Variance",
    "View",
    "Weigh",
    "Window",
    "ZStream",
    "table",
    "transactions",
]
