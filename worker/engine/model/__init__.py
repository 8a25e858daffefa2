"""The model in memory: loading, placement, memory."""
