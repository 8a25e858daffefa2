"""Golden files of everything that a user sees: OpenAPI, help, resources. `python -m tests.golden` writes them."""
