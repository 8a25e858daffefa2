"""From messages to prompts, and from tokens to text."""
