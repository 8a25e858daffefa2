"""Large answers: downloads, tensor slices, event streams."""
