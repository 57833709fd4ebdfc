"""Migration, planned: what moves where, in which rounds, and what it will cost. Pure."""
