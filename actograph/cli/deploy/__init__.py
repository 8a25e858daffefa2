"""`actograph deploy`: the service on machines reached by SSH."""
