"""State that is read before the step that needs it, because its bin is about to move here."""
