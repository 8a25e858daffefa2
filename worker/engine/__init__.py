"""The one room that touches the model: tokens in, tokens and activation rows out."""
