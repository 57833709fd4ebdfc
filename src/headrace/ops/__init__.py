"""Ready-made operators: windows, joins, running aggregates, and the like, as computations.

Each is drawn like a computation of one's own, with ``Pipeline.compute``, and produces on the one output
``out``; its state and the columns of its output follow from the streams that it reads. All are
columnar: what a step costs follows from the records and rows that it touches.
"""

from headrace.ops.aggregates import Aggregate, Count, Max, Mean, Min, Sum
from headrace.ops.calendar import CalendarWindows
from headrace.ops.dedup import Dedup
from headrace.ops.hot import two_phase
from headrace.ops.join import Join
from headrace.ops.lookup import Lookup
from headrace.ops.reduce import Reduce
from headrace.ops.running import Running
from headrace.ops.sessions import Session
from headrace.ops.stateless import Filter, FlatMap, Map
from headrace.ops.top import LastN, TopN
from headrace.ops.windows import Sliding, Tumbling, TumblingCount

__all__ = [
    "Aggregate",
    "CalendarWindows",
    "Count",
    "Dedup",
    "Filter",
    "FlatMap",
    "Join",
    "LastN",
    "Lookup",
    "Map",
    "Max",
    "Mean",
    "Min",
    "Reduce",
    "Running",
    "Session",
    "Sliding",
    "Sum",
    "TopN",
    "Tumbling",
    "TumblingCount",
    "two_phase",
]
