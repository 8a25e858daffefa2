"""Activation rows of a pass: staged on the device, kept in blocks on the host."""
