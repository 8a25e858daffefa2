"""One class per resource of the service: `client.jobs`, `client.sessions`, and the others."""
