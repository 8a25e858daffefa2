"""`actograph smoke`: test a running service from the connection to its stored activations."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli import exit_codes
from actograph.cli.flags.options import FormatOption, GlobalOptions, client_of
from actograph.cli.output.output import Format, emit

if TYPE_CHECKING:
    from actograph.smoke.smoke import Step


def smoke(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Argument(help="URL of the service, with the path of a proxy. Default: that of --url."),
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="Expected model. Default: the first served model.")
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
        (ctx.find_object(GlobalOptions) or ctx.ensure_object(GlobalOptions)).url = url

    def report(step: "Step") -> None:
        if output is Format.JSON:
            emit(step.model_dump_json())
        else:
            emit(f"{step.outcome:<6} {step.step:<10} {step.seconds:7.2f} s  {step.detail}")

    with closing(client_of(ctx)) as client:
        try:
            Smoke(client, report, model=model, timeout=timeout).run()
        except SmokeFailed as failure:
            raise exit_codes.Ended(int(failure.kind)) from failure
