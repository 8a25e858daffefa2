"""SAELens, in an environment of its own, and what it does there."""

from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
