"""Evaluations: what is asked (tasks), how answers are judged (scorers), where problems come from."""
