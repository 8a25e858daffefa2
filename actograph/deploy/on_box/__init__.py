"""The part of a deployment that runs on the box: the standard library alone, sent there by each client."""
