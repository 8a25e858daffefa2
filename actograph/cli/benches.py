"""`actograph bench`: the repository's benches, from wherever the repository is installed."""

import importlib.util
import subprocess
import sys

import typer

from actograph.cli import exit_codes
from actograph.contract.errors import NotFound

#: whatever follows belongs to `python -m bench`
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def bench(ctx: typer.Context) -> None:
    """Run the benches of the repository, as `python -m bench` does."""
    found = importlib.util.find_spec("bench")
    # a package of that name may be anybody's
    if found is None or importlib.util.find_spec("bench.session_files") is None:
        raise NotFound("the benches are in the repository and not in the package: run this in a checkout")
    ended = subprocess.run([sys.executable, "-m", "bench", *ctx.args], check=False)
    if ended.returncode:
        raise exit_codes.Ended(exit_codes.ERROR)
