"""Deployment of the service to machines reached by OpenSSH."""
