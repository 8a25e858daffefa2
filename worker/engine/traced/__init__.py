"""Generation and scoring under nnsight."""
