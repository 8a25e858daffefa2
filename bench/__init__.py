"""Programs that measure: `python -m bench` runs the short form of each."""
