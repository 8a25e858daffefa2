"""A small model and its problems, part of the package, for a demo without downloads.

`training/` in the repository made both. The model's train_report.json has its accuracy.
"""

from pathlib import Path

MODEL_DIR = Path(__file__).with_name("model")
PROBLEMS = Path(__file__).with_name("problems.jsonl")
