"""Planning of migrations: the layout to have, what moves for it, in which rounds, and the cost.

==================  ================================================================================
``targets``         planners: from a layout and its load to another layout
``moves``           the difference of two layouts: splits, moves, merges
``rounds``          strategies: all at once, fluid, batched (by edge colouring, ``colouring``)
``objective``       rounds within a latency objective; estimates for any strategy
``plans``           all of that as configuration updates
``splitting``       which bins to split and to merge
==================  ================================================================================

Everything here is pure: layouts and numbers in, layouts and numbers out. Plans are carried out
elsewhere.
"""

from headrace.migration.costs import Costs
from headrace.migration.loads import Load, Prices
from headrace.migration.measurements import Measurements
from headrace.migration.moves import Difference, Move, Moves, moves_between
from headrace.migration.objective import Estimate, Within, estimate, within
from headrace.migration.plans import MigrationPlan, plan
from headrace.migration.rounds import (
    AllAtOnce,
    Batched,
    Fluid,
    Round,
    Rounds,
    Strategy,
    all_at_once,
    batched,
    by_demand,
    fluid,
)
from headrace.migration.splitting import Reshaping, SplitRule, reshape
from headrace.migration.targets import Target, Worth, balanced, contiguous, minimum_movement

__all__ = [
    "AllAtOnce",
    "Batched",
    "Costs",
    "Difference",
    "Estimate",
    "Fluid",
    "Load",
    "Measurements",
    "MigrationPlan",
    "Move",
    "Moves",
    "Prices",
    "Reshaping",
    "Round",
    "Rounds",
    "SplitRule",
    "Strategy",
    "Target",
    "Within",
    "Worth",
    "all_at_once",
    "balanced",
    "batched",
    "by_demand",
    "contiguous",
    "estimate",
    "fluid",
    "minimum_movement",
    "moves_between",
    "plan",
    "reshape",
    "within",
]
