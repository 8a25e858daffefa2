"""The part of a deployment that runs on the box: Python 3.8 and the standard library alone."""
