"""Authentication and roles."""
