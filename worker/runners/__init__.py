"""One file per job kind: how its samples become prompts, and its completions scores."""
