"""Tokens: inputs of a pass, the sampler with its tables, grammars, stopping."""
