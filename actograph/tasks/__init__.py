"""Tasks: prompts from rows of a dataset, templates, and task files."""
