"""TransformerLens' own activation patching, in a process with a Python of its own."""

from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
