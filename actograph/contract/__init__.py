"""The contract between the rooms: job specs, resources, hook names and errors."""
