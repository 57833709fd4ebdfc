"""What a user writes: computations, with their state, timers and outputs."""
