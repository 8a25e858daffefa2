"""Job requests: from short arguments, as in calls and flags, to a spec and its uploads."""
