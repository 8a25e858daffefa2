"""Work that keeps index and store in order: healing, reaper, gc, verify."""
