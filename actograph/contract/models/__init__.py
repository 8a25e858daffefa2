"""Names, identities and loads of models."""
