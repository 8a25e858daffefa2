"""Background work: the reconciler and webhooks."""
