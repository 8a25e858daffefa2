"""Tokens coloured by numbers: what the page of a session and a notebook draw.

`static` has the scripts and styles. The service's page serves them; `notebook.py` puts them into an output.
"""

from pathlib import Path

#: scripts and styles
STATIC = Path(__file__).parent / "static"
