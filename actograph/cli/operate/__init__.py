"""Commands that install, check, save and restore a service."""
