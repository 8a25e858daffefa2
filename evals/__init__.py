"""What an evaluation is, for API and worker alike: rows, prompts, tools, scoring, statistics, sizes."""
