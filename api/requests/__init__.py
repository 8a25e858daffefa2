"""Request bodies: size limits, lanes, idempotency."""
