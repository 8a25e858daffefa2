"""Work that keeps index and store in order: duties, reaper, gc, verify."""
