"""Evaluations, for API and worker alike: rows, prompts, tools, scoring, statistics, sizes of jobs."""
