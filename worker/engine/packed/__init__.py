"""The packed forward: one pass over tokens of all requests, on an arena of keys and values."""
