"""The command line: one file or package per noun."""
