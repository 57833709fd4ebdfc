"""Transactions of the input: rows that belong together become visible in one step, or not at all.

* ``building``: how a program asks for it, and the pipeline that comes of it.
* ``ends``: where it is said that a transaction has ended, and how many rows it has.
* ``counting``: which transactions are whole; ``ordering``: which of them may go; ``gate``: their rows.

Three computations make a gate. ``counting`` and ``gate`` are keyed by the transaction, so rows are
divided among the workers. Only ``ordering`` has one key. It sees a record for each transaction, and
no rows. The three are in three layers of one step. So a transaction that is whole leaves in the step
in which its last row comes, and the rows of all of its tables leave in the same step.
"""

from headrace.zsets.transactions.building import Transactions, transactions
from headrace.zsets.transactions.ends import Ends

__all__ = ["Ends", "Transactions", "transactions"]
