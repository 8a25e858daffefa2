"""Linear probes with grouped folds, baselines and intervals."""
