"""Training of the demo model: `python -m training.demo_model OUT`. Not part of the package."""
