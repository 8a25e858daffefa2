"""Servers, fault tools and stand-ins that tests and benchmarks share."""
