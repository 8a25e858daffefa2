"""Work beside the requests: reconciler and webhooks."""
