"""One file per kind of analysis: from a context to results."""
