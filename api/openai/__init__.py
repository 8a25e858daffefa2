"""OpenAI's chat, completions and batches."""
