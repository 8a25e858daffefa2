"""The calls as coroutines. This is the source: `actograph.client.unasync` makes `blocking` of it."""
