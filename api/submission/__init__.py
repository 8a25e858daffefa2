"""The way of a spec from the request to inserted samples."""
