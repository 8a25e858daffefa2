"""Analyses of activations on one's own arrays: outlier features, probes, comparisons, the logit lens."""
