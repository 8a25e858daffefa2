"""The analysis worker: a process without a model that runs analyses of stored sessions."""
