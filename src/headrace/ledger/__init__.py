"""The ledger: one manifest a step, committed by creating its name; who may, and what it means."""
