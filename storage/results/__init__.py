"""Results of jobs: metrics, comparisons, matrices of rows, rescoring."""
