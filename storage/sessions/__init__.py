"""Stored sessions: file format, writer, reader, listing, changes."""
