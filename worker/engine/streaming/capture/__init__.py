"""Captured rows: from hooks through places on the device to the sink."""
