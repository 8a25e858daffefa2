"""Jobs, their state changes, batches and webhooks."""
