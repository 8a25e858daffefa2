"""Request bodies: size limits, lanes."""
