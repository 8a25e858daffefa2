"""The dashboard: pages in HTML that read through the functions of the JSON routes."""
