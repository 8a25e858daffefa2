"""`actograph deploy`: the service of this checkout on a machine reached by OpenSSH."""
