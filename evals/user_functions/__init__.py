"""Tools and scorers that the operator adds to the service."""
