"""Results of jobs: metrics, comparisons, rescoring."""
