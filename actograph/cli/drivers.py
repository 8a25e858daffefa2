"""`actograph lm-eval`: lm-eval with its model `actograph`."""

import sys
from importlib.util import find_spec

import typer

from actograph.contract.errors import InvalidRequest


def lm_eval(ctx: typer.Context) -> None:
    """Run lm-eval on a model of the service. Takes the arguments of `lm_eval`.

    Needs `pip install 'actograph[lm-eval]'`. See docs/guides/drivers.md for the keys of --model_args.
    """
    if find_spec("lm_eval") is None:
        raise InvalidRequest("lm-eval is not installed; use: pip install 'actograph[lm-eval]'")
    from lm_eval.__main__ import cli_evaluate

    from actograph.drivers import lm_eval_model  # registers the model, which lm-eval cannot find by itself

    typed = list(ctx.args)
    if not {"--model", "-M"} & {word.partition("=")[0] for word in typed}:
        typed += ["--model", lm_eval_model.NAME]
    sys.argv = ["lm_eval", *typed]
    cli_evaluate()
