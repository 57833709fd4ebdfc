"""The ledger: one manifest for each step, and the protocol by which drivers commit them."""
