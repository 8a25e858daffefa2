"""A model and problems of our own, small enough to ship, so that a demo needs no download.

The model was trained by `python -m training.demo_model`; train_report.json says how well.
"""

from pathlib import Path

MODEL_DIR = Path(__file__).with_name("model")
PROBLEMS = Path(__file__).with_name("problems.jsonl")
