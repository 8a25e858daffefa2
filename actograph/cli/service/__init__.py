"""Commands for operators of a service: smoke test, backup, deployment."""
