"""Keys, roles, queue control, capabilities."""
