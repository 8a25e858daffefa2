"""Queries about samples: their insertion, lists and results."""

from storage.samples.insertion import NewSample, insert, next_position
from storage.samples.lists import find, get, resource

__all__ = ["NewSample", "find", "get", "insert", "next_position", "resource"]
