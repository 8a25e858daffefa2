"""`actograph smoke`: test a running service from the connection to its stored activations."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli.flags import FormatOption, GlobalOptions, connect
from actograph.cli.output import Ended, Format, emit

if TYPE_CHECKING:
    from actograph.smoke.smoke import Step


def smoke(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Argument(help="URL of the service, with the path of a proxy. (default: that of --url)"),
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="Expected model. (default: the first served model)")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for each job.")] = 600.0,
    output: FormatOption = Format.TABLE,
) -> None:
    """Test a running service: capture, read the activations back, evaluate, and clean up.

    Prints one line per step. The exit status names the kind of failure; see docs/operate/smoke.md.
    """
    from actograph.smoke.failures import SmokeFailed
    from actograph.smoke.smoke import Smoke

    if url is not None:
        ctx.ensure_object(GlobalOptions).url = url

    def report(step: "Step") -> None:
        if output is Format.JSON:
            emit(json.dumps(asdict(step)))
        else:
            emit(f"{step.outcome:<6} {step.step:<10} {step.seconds:7.2f} s  {step.detail}")

    with connect(ctx) as client:
        try:
            Smoke(client, report, model=model, timeout=timeout).run()
        except SmokeFailed as failure:
            raise Ended(int(failure.kind)) from failure
