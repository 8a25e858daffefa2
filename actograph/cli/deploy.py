"""`actograph deploy`: the service on a box reached by SSH."""

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.shell import ERROR, Shell, ask, command, emit, end, load_settings, note
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.deploy.ssh import Ssh
    from actograph.deploy.tunnel import Deployment, Records


class _ToByDefault(typer.core.TyperGroup):
    """`actograph deploy TARGET` is `actograph deploy to TARGET`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not {args[0]} & {*self.commands, "-h", "--help"}:
            args = ["to", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ToByDefault,
    no_args_is_help=True,
    help="Deploy this checkout to a box over SSH, `actograph deploy user@host`, and manage deployments.",
)
BoxArgument = Annotated[
    str | None, typer.Argument(metavar="TARGET", help="user@host[:port]. (default: the only deployment)")
]
#: setting with the service's admin keys
_KEYS = "ACTOGRAPH_API_KEYS"
_EXAMPLES = (
    "actograph deploy me@gpu-box --model Qwen/Qwen3-0.6B --env HF_TOKEN",
    "actograph deploy me@gpu-box --options '--workers 2 --data-root data'",
    "actograph deploy root@10.0.0.7:2222 --python /opt/conda/bin/python --model /models/q",
)


def _records() -> "Records":
    from actograph.deploy.tunnel import Records

    return Records(load_settings().home.expanduser().absolute())


def _log(line: str) -> None:
    note(f"  | {line}")


@command(app, "to", None, _EXAMPLES)
def to(
    shell: Shell,
    target: str = typer.Argument(help="user@host[:port], or a host of ~/.ssh/config."),
    *,
    model: str | None = typer.Option(None, help="Hub id, or folder on the box."),
    options: str | None = typer.Option(None, help="More options of `actograph up`."),
    env: list[str] = typer.Option(
        [], help="Variable of this shell for the service and pip, such as HF_TOKEN; or NAME=VALUE. Repeat."
    ),
    port: int | None = typer.Option(None, min=1, max=65535, help="Port on the box. (default: 8420)"),
    local_port: int | None = typer.Option(None, min=1, max=65535, help="Port of the tunnel here."),
    python: str | None = typer.Option(
        None,
        help="Python on the box, used with its own packages. (default: that of the last deployment)",
    ),
    folder: str | None = typer.Option(None, help="Folder on the box. (default: .actograph-deploy)"),
    ssh: str | None = typer.Option(None, help="The ssh command, such as 'ssh -J gate'. (default: ssh)"),
    reuse: bool = typer.Option(False, "--reuse", help="Install only missing parts on the box. (default)"),
    fresh: bool = typer.Option(False, "--fresh", help="Copy and install everything again."),
    frozen: bool = typer.Option(False, "--frozen", help="Install nothing; fail if something is missing."),
    smoke: bool = typer.Option(True, help="Run the smoke test at the end."),
    backup: bool = typer.Option(True, help="Copy the index before a migration, for a rollback."),
    timeout: float = typer.Option(1800.0, min=1, help="Seconds until the service must be ready."),
) -> None:
    """Install the service on a box, start it, open a tunnel and test it.

    `actograph deploy TARGET` does the same. Options default to those of the last deployment. If the new
    release does not start, the former one starts again.
    """
    modes = [name for name, is_set in (("reuse", reuse), ("fresh", fresh), ("frozen", frozen)) if is_set]
    if len(modes) > 1:
        raise InvalidRequest("choose one of --reuse, --fresh and --frozen")
    ready = deployed(
        shell, target, env, mode=modes[0] if modes else "reuse", folder=folder, ssh=ssh, model=model,
        port=port, local_port=local_port, options=options, python=python, seconds=timeout, smoke=smoke,
        backup=backup,
    )  # fmt: skip
    emit(json.dumps({"target": target, "url": ready.url}) if shell.json else _next_commands(ready))


def deployed(
    shell: Shell,
    target: str,
    env: Sequence[str] = (),
    *,
    mode: str = "reuse",
    folder: str | None = None,
    ssh: str | None = None,
    options: str | None = None,
    python: str | None = None,
    **given: Any,
) -> "Deployment":
    """Deploy to a box and return the deployment, whose tunnel is open. `given`: fields of `Deploy`."""
    from actograph.deploy.deploy import Deploy, Mode

    records, variables = _records(), _variables(env)
    known = records.find(target)
    former = None if mode == Mode.FRESH else known.python
    known = replace(known, folder=folder or known.folder, ssh=ssh or known.ssh, python=python or former)
    return Deploy(
        records=records, deployment=known, report=note, log=_log, mode=Mode(mode), environment=variables,
        options=None if options is None else shlex.split(options), python=known.python,
        api_key=shell.options.api_key or load_settings().api_key or variables.get(_KEYS, "").split(",")[0],
        **given,
    ).run()  # fmt: skip


def tunnelled(target: str) -> "Deployment":
    """Return a deployment after opening its tunnel."""
    with _connected(target) as (records, deployment, ssh):
        opened = deployment.with_tunnel(ssh)
        records.save(opened)
        return opened


def _variables(typed: Sequence[str]) -> dict[str, str]:
    """Return the values of `NAME`, from this process's environment, and of `NAME=VALUE`."""
    found = {}
    for text in typed:
        name, is_given, value = text.partition("=")
        if not is_given and name not in os.environ:
            raise InvalidRequest(f"--env {name}: this shell has no such variable")
        found[name] = value if is_given else os.environ[name]
    return found


def _next_commands(ready: "Deployment") -> str:
    name = shlex.quote(ready.target)
    return f"""ready: {ready.url}
export ACTOGRAPH_URL={ready.url}
actograph jobs submit --prompt 'Once upon a time' --capture resid_post@all --watch
actograph deploy logs {name} -f
actograph deploy tunnel {name}       # opens the tunnel again
actograph deploy rollback {name}
actograph deploy destroy {name}      # keeps the data"""


@contextmanager
def _connected(target: str | None) -> "Iterator[tuple[Records, Deployment, Ssh]]":
    records = _records()
    deployment = records.find(target)
    with deployment.connected(records.home) as ssh:
        yield records, deployment, ssh


@command(app)
def status(shell: Shell, target: BoxArgument = None) -> None:
    """Show the release, the process and the tunnel. Exit status 1: the service does not run."""
    with _connected(target) as (_, deployment, ssh):
        found = ssh.call("status", {"folder": deployment.folder}, _log)
        has_tunnel = ssh.was_open and deployment.answers()
    release = found["release"] or {}
    shown = {
        "target": deployment.target, "release": release.get("number"), "version": release.get("version"),
        "model": release.get("model"), "port": release.get("port"), "previous": found["previous"],
        "pid": found["pid"], "url": deployment.url if has_tunnel else None,
    }  # fmt: skip
    text = "\n".join(f"{name:<9} {'-' if value is None else value}" for name, value in shown.items())
    emit(json.dumps(shown) if shell.json else text)
    end(0 if found["pid"] else ERROR)


@command(app, formats=False)
def logs(
    shell: Shell,
    target: BoxArgument = None,
    *,
    follow: bool = typer.Option(False, "--follow", "-f", help="Show further lines until Ctrl-C."),
    lines: int = typer.Option(100, "--lines", "-n", min=1, help="Number of lines."),
    name: str = typer.Option("service", "--log", help="service, api, worker-1, redis or migrate."),
) -> None:
    """Print the end of a log of the service."""
    with _connected(target) as (_, deployment, ssh):
        file = shlex.quote(f"{deployment.folder}/home/logs/{Path(name).name}.log")
        for line in ssh.stream(f"tail -n {lines} {'-F' if follow else ''} -- {file}"):
            emit(line)


@command(app)
def tunnel(
    shell: Shell,
    target: BoxArgument = None,
    *,
    close: bool = typer.Option(False, "--close", help="Close the tunnel."),
    local_port: int | None = typer.Option(None, min=1, max=65535, help="Port here."),
) -> None:
    """Open the tunnel to the service in the background, and print its URL."""
    with _connected(target) as (records, deployment, ssh):
        url = None
        if close:
            ssh.close()
        else:
            opened = deployment.with_tunnel(ssh, local_port)
            records.save(opened)
            url = opened.url
    emit(json.dumps({"target": deployment.target, "url": url}) if shell.json else url or "closed")


@command(app)
def stop(shell: Shell, target: BoxArgument = None) -> None:
    """Stop the service and close the tunnel. `actograph deploy TARGET` starts it again."""
    with _connected(target) as (_, deployment, ssh):
        found = ssh.call("stop", {"folder": deployment.folder}, _log)
        ssh.close()
    emit(json.dumps(found) if shell.json else "stopped" if found["stopped"] else "it did not run")


@command(app)
def rollback(
    shell: Shell,
    target: BoxArgument = None,
    *,
    timeout: float = typer.Option(1800.0, min=1, help="Seconds until the service must be ready."),
) -> None:
    """Change to the release before the current one. A second rollback changes back.

    If the current release migrated the index, this restores the backup from before. It keeps the newer index.
    """
    with _connected(target) as (_, deployment, ssh):
        found = ssh.call("rollback", {"folder": deployment.folder, "seconds": timeout}, _log)
    restored = f"; {found['index']}" if found["index"] else ""
    emit(json.dumps(found) if shell.json else f"release {found['number']} serves{restored}")


@command(app)
def destroy(
    shell: Shell,
    target: BoxArgument = None,
    *,
    delete_data: bool = typer.Option(False, "--delete-data", help="Remove index, artifacts and logs, too."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
) -> None:
    """Stop the service and remove the deployment from the box. Keeps its data by default."""
    with _connected(target) as (records, deployment, ssh):
        if not yes:
            data = "with all data" if delete_data else "and keep its data"
            ask(f"Remove {deployment.folder} on {deployment.target}, {data}?")
        request = {"folder": deployment.folder, "delete_data": delete_data}
        found = ssh.call("destroy", request, _log)
        ssh.close()
        records.forget(deployment)
    emit(json.dumps(found) if shell.json else f"removed; kept: {found['kept'] or 'nothing'}")
