"""Golden files of routes, commands and models; `python -m tests.golden` writes them."""
