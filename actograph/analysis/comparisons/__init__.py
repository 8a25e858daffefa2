"""Comparisons of two sets of activations, paired by problem."""
