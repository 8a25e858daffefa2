"""Captured rows, from the device to the sink."""
