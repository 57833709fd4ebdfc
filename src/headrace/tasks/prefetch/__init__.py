"""State that is read before a step needs it, because its bin is about to move to this worker."""
