"""Evaluations: datasets, tools, and dialogues with tools."""
