"""The calls, each of which waits for its answer; made from `aio` by `actograph.client.unasync`."""
