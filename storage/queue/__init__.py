"""The order in which jobs run, and on which worker."""
