"""How the demo's model was made: `python -m training.demo_model OUT`. Not part of the package."""
