"""Write the generated pages of docs/reference from the program itself: `python -m docs.generate`."""
