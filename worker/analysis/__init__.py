"""The process that analyses stored sessions: without a model, on a queue of its own."""
