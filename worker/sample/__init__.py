"""From a prompt to a recorded session."""
