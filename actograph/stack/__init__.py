"""The supervisor of `up` and `demo`: broker, API and workers as one process group."""
