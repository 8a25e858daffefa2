"""Routes about the service itself."""
