"""Discovery and verification of a model's hook points."""
