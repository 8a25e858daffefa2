"""`actograph bench`: the repository's benches."""

import importlib.util
import subprocess
import sys

import typer

from actograph.cli import exit_codes
from actograph.contract.errors import NotFound

#: all arguments are passed to `python -m bench`
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def bench(ctx: typer.Context) -> None:
    """Run the benches of the repository, as `python -m bench` does."""
    found = importlib.util.find_spec("bench")
    # another package may have that name
    if found is None or importlib.util.find_spec("bench.session_files") is None:
        raise NotFound("the benches are not part of the package; run this in a checkout of the repository")
    ended = subprocess.run([sys.executable, "-m", "bench", *ctx.args], check=False)
    if ended.returncode:
        raise exit_codes.Ended(exit_codes.ERROR)
