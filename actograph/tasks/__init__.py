"""Tasks as data: templates over the columns of a row, and task files."""
