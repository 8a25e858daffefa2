"""The index, the artifact store, the session file format and the broker."""
