"""`actograph demo`: from nothing to a finished evaluation with its activations."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from actograph.cli import jobs, sessions
from actograph.cli.shell import Shell, emit, note
from actograph.short_texts import shorten, size
from actograph.tables import table

if TYPE_CHECKING:
    from actograph.client.jobs import JobHandle
    from actograph.client.sessions import SessionHandle

#: a model this small is slower on several threads, which wait for each other
THREADS = "--threads=1"


def demo(
    shell: Shell,
    *,
    home: Path = typer.Option(Path(".demo"), help="Data folder of the demo."),
    limit: int = typer.Option(200, min=1, help="Number of problems."),
) -> None:
    """Try it: evaluate a tiny model with capture, and read its activations.

    Needs neither a network nor a GPU. The sessions stay on disk; the service stops at the end.
    """
    from actograph.demo import MODEL_DIR, PROBLEMS
    from actograph.stack.programs import require_installed
    from actograph.stack.up import up_process

    require_installed()
    home = home.absolute()
    served = f"demo={MODEL_DIR}"
    arguments = [f"--home={home}", "--host=127.0.0.1", "--port=0", f"--model={served}", THREADS]
    # the settings of the user's shell are for another service
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTOGRAPH_")}
    note("1/3 starting a service")
    with up_process(arguments, environment | {"HF_HUB_OFFLINE": "1"}) as url:
        shell.options.url = url
        note("2/3 running an evaluation that keeps activations")
        capture = "attn_in,mlp_in,resid_post@all"
        spec = {"model": "demo", "task": "gsm8k", "dataset": str(PROBLEMS), "limit": limit, "tag": ["demo"]}
        job = jobs.submit(shell, watch=True, **spec, temperature=0.0, max_tokens=96, capture=capture)
        note("3/3 reading the activations back")
        found = list(job.sessions())
        _report(job, found)
    emit(f"Files:     {home / 'artifacts' / 'sessions'}/<session id>/")
    emit(_next_steps(home, served, shorten(found[0].id)))


def _report(job: "JobHandle", found: "list[SessionHandle]") -> None:
    """Print the rate and some activations."""
    seconds = max(1, (job.finished_at or job.created_at) - job.created_at)
    stored = size(sum(session.bytes for session in found))
    emit(f"\nRate:      {len(found) / seconds:.1f} samples/s, from submit to stored")
    emit(f"Kept:      {len(found)} sessions, {stored}, every token of {len(found[0].hooks)} hooks")
    emit(f"\n{table(sessions.COLUMNS, found[:5])}\n")
    hook = list(found[0].hooks)[-1]
    tensor = found[0][hook]
    values = " ".join(f"{value:.4f}" for value in tensor[-1][:6])
    emit(f"Tensor:    {hook} of {found[0].id}")
    emit(f"           shape {list(tensor.shape)}, dtype {tensor.dtype}, last row begins {values}")


def _next_steps(home: Path, served: str, session_id: str) -> str:
    """Return commands to paste."""
    running = Path(sys.argv[0])
    named = running.name != "actograph" or shutil.which("actograph")
    program = "actograph" if named else shlex.quote(os.path.relpath(running))
    up = shlex.join(["up", "--home", os.path.relpath(home), "--model", served, THREADS])
    return f"""
Next:
  {program} {up}
and in another terminal:
  {program} sessions ls
  {program} sessions show {session_id}
  {program} sessions download {session_id} --out pulled"""
