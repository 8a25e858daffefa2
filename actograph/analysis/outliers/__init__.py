"""Outlier features, massive activations, moments and expert load, in mergeable sums."""
