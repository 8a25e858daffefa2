"""lm-eval itself, in a virtual environment of its own, for tests and benches that compare with it."""
