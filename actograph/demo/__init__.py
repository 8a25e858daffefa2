"""A small model and its problems, part of the package, for a demo without downloads.

The model was trained by `python -m training.demo_model`; train_report.json says how well.
"""

from pathlib import Path

MODEL_DIR = Path(__file__).with_name("model")
PROBLEMS = Path(__file__).with_name("problems.jsonl")
