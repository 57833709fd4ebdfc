"""Looking at a running pipeline."""
