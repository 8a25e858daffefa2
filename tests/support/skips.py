"""Reasons for which a test may skip in CI; any other skip fails there."""

ACCEPTED = (
    "a missing table is an OperationalError in SQLite alone",
    "needs a GPU",
    "needs two GPUs",
    "no zsh here",
    "no fish here",
    "file systems cannot be mounted here",
)
