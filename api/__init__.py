"""The HTTP service: FastAPI on the index, the store and the broker. Never imports torch or the worker."""
