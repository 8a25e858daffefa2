"""Rows of dataset files: JSON lines and Parquet."""
