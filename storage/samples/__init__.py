"""Queries about samples: their insertion, lists and results."""

from storage.samples.rows import NewSample, find, get, insert, next_position, resource

__all__ = ["NewSample", "find", "get", "insert", "next_position", "resource"]
