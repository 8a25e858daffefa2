"""`actograph deploy status | logs | tunnel | stop | rollback | destroy`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli import exit_codes
from actograph.cli.deploy.group import (
    READY_SECONDS,
    BoxArgument,
    SecondsOption,
    app,
    boxes,
    show_log,
)
from actograph.cli.flags.options import FormatOption
from actograph.cli.output import tables
from actograph.cli.output.output import Format, ask, emit, note
from actograph.contract.errors import ActographError

if TYPE_CHECKING:
    from actograph.deploy.boxes import Deployment
    from actograph.deploy.remote import Remote


@contextmanager
def _connected(deployment: "Deployment", log: Any = show_log) -> "Iterator[Remote]":
    from actograph.deploy.remote import Remote
    from actograph.deploy.ssh import Ssh

    with Ssh(deployment.box.target, deployment.box.ssh) as ssh:
        yield Remote(ssh, deployment.root, deployment.python, note, log)


@app.command()
def status(
    box: BoxArgument = None,
    *,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show deployments: release, process and tunnel. Exit status 1: a service does not run."""
    from actograph.deploy import tunnel

    known = boxes()
    names = [known.deployment(box).name] if box is not None else known.names()
    all_run = True
    rows = []
    for name in names:
        deployment = known.deployment(name)
        line: dict[str, Any] = {"name": name, "target": deployment.box.target}
        try:
            with _connected(deployment) as remote:
                line |= remote.call("status")
        except ActographError as error:
            line["error"] = str(error)
        is_open = tunnel.is_open(deployment)
        line["url"] = deployment.url if is_open else None
        all_run = all_run and bool(line.get("pid"))
        if output is Format.JSON:
            emit(json.dumps(line))
        rows.append(_row(line))
    if output is Format.TABLE:
        emit(tables.render(("BOX", "TARGET", "RELEASE", "VERSION", "STATE", "FREE DISK", "TUNNEL"), rows))
    if not all_run:
        raise exit_codes.Ended(exit_codes.ERROR)


def _row(line: dict[str, Any]) -> list[str]:
    release = line.get("release") or {}
    state = (
        f"runs (pid {line['pid']}, {line['manager']})" if line.get("pid") else line.get("error", "stopped")
    )
    return [
        line["name"], line["target"], str(release.get("number", "-")), release.get("code", "-"), state,
        tables.size(line["free_bytes"]) if "free_bytes" in line else "-", line["url"] or "closed",
    ]  # fmt: skip


@app.command()
def logs(
    box: BoxArgument = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show further lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Number of lines.")] = 100,
    name: Annotated[str, typer.Option("--log", help="service, keeper, api, worker-1, ...")] = "service",
    output: FormatOption = Format.TABLE,
) -> None:
    """Print the end of a log of the service."""

    def show(line: str) -> None:
        emit(json.dumps({"log": name, "line": line}) if output is Format.JSON else line)

    with _connected(boxes().deployment(box), show) as remote:
        remote.call("logs", name=name, follow=follow, lines=lines)


@app.command("tunnel")
def open_tunnel(
    box: BoxArgument = None,
    *,
    close: Annotated[bool, typer.Option("--close", help="Close it.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Open the tunnel to the service in the background, and print its URL."""
    from actograph.deploy import tunnel
    from actograph.deploy.ssh import Ssh

    known = boxes()
    deployment = known.deployment(box)
    if close:
        deployment = tunnel.close_tunnel(deployment)
    else:
        with Ssh(deployment.box.target, deployment.box.ssh) as ssh:
            messages = known.file.parent / "deployments" / f"{deployment.name}.log"
            deployment = tunnel.open_tunnel(ssh, deployment, messages)
    known.save(deployment)
    url = None if close else deployment.url
    emit(json.dumps({"name": deployment.name, "url": url}) if output is Format.JSON else url or "closed")


@app.command()
def stop(box: BoxArgument = None, *, output: FormatOption = Format.TABLE) -> None:
    """Stop the service and close the tunnel. `deploy BOX` starts it again."""
    from actograph.deploy import tunnel

    known = boxes()
    deployment = known.deployment(box)
    with _connected(deployment) as remote:
        answer = remote.call("stop")
    known.save(tunnel.close_tunnel(deployment))
    _say(output, {"name": deployment.name} | answer, "stopped" if answer["stopped"] else "it did not run")


@app.command()
def rollback(
    box: BoxArgument = None, *, timeout: SecondsOption = READY_SECONDS, output: FormatOption = Format.TABLE
) -> None:
    """Change to the release before the current one. A second rollback changes back."""
    deployment = boxes().deployment(box)
    with _connected(deployment) as remote:
        answer = remote.call("rollback", seconds=timeout)
    _say(output, {"name": deployment.name} | answer, f"release {answer['number']} serves")


@app.command()
def destroy(
    box: BoxArgument = None,
    *,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="File or folder to keep, such as home (all data). Repeat for more."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Stop the service and remove everything that was deployed, with its data."""
    from actograph.deploy import tunnel

    known = boxes()
    deployment = known.deployment(box)
    kept = ", ".join(keep or []) or "nothing"
    if not yes:
        ask(f"Remove {deployment.root} on {deployment.box.target} with all its data? Kept: {kept}.")
    with _connected(deployment) as remote:
        answer = remote.call("destroy", keep=keep or [])
    tunnel.close_tunnel(deployment)
    known.forget(deployment.name)
    _say(output, {"name": deployment.name} | answer, f"removed {deployment.root}; kept: {kept}")


def _say(output: Format, record: dict[str, Any], text: str) -> None:
    emit(json.dumps(record) if output is Format.JSON else text)
