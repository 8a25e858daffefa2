"""Results of analysis jobs as objects and data frames."""
