"""Work that keeps index and store in order: duties, sweep, gc, verify."""
