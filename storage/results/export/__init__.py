"""The results folder of a job: prompts, answers, scores and activations as files."""
