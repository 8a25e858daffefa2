"""Rows of many sessions as one matrix, and samples as a data frame."""
