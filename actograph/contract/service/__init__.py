"""API keys, their roles, and the service's capabilities."""
