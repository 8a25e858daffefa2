"""Jobs, their state changes, and batches."""
