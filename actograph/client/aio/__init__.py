"""The client as coroutines. This is the source: `actograph.client.unasync` generates `blocking` from it."""
