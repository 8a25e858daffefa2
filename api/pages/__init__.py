"""The page: HTML for people, which reads through the functions of the JSON routes."""
