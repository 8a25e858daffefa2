"""The service's own code, from many threads at once on one index: what `bench/index_races.py` runs."""
