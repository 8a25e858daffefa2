"""Background work: the reconciler."""
