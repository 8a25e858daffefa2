"""Scorers: from a completion to a verdict, without torch.

Worker, API and command line use them.
"""
