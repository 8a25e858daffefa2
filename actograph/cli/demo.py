"""`actograph demo`: from nothing to a finished evaluation with its activations."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from actograph.cli.job_tables import results_table
from actograph.cli.output import emit, note, shorten, size, table
from actograph.contract.errors import ActographError

if TYPE_CHECKING:
    from actograph.client.jobs import JobHandle
    from actograph.client.sessions import SessionHandle

#: a model this small is slower on several threads, which wait for each other
THREADS = "--threads=1"
#: the model answers nearly all problems in training's own test (demo/model/train_report.json)
LEAST_ACCURACY = 0.8
STRICT = "exact_match,strict-match"


class DemoFailed(ActographError):
    """The demo did not give the expected results."""

    code = "demo_failed"


def demo(
    home: Path = typer.Option(Path(".demo"), help="Data folder of the demo."),
    limit: int = typer.Option(200, min=1, help="Number of problems."),
) -> None:
    """Try it: evaluate a tiny model with capture, and read its activations.

    Needs neither a network nor a GPU. The sessions stay on disk; the service is stopped at the end.
    """
    from actograph.client import Client
    from actograph.demo import MODEL_DIR, PROBLEMS
    from actograph.stack.up import require_installed, up_process

    require_installed()
    home = home.absolute()
    served = f"demo={MODEL_DIR}"
    arguments = [f"--home={home}", "--host=127.0.0.1", "--port=0", f"--model={served}", THREADS]
    # the settings of the user's shell are for another service
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTOGRAPH_")}
    note("1/4 starting a service")
    with up_process(arguments, environment | {"HF_HUB_OFFLINE": "1"}) as url, Client(url, "") as client:
        note("2/4 uploading problems and submitting an evaluation that keeps activations")
        spec: dict[str, Any] = {
            "kind": "evaluation",
            "model": "demo",
            "task": "gsm8k",
            "dataset": {"file_id": client.files.upload(PROBLEMS).id},
            "limit": limit,
            "sampling": {"temperature": 0.0, "max_tokens": 96},
            "capture": {"points": ["attn_in", "mlp_in", "resid_post"], "layers": "all"},
            "tags": ["demo"],
        }
        job = client.submit(spec)
        note(f"3/4 running {job.id}")
        job = job.wait(progress=True)
        note("4/4 reading the activations back")
        sessions = list(job.sessions())
        _check(job, sessions)
        _report(job, sessions)
    emit(f"Files:     {home / 'artifacts' / 'sessions'}/<session id>/")
    emit(_next_steps(home, served, shorten(sessions[0].id)))


def _check(job: "JobHandle", sessions: "list[SessionHandle]") -> None:
    """Raises DemoFailed if samples or sessions are missing, or the accuracy is too low."""
    if job.status != "completed" or job.progress.failed or len(sessions) != job.progress.total:
        raise DemoFailed(
            f"the job {job.status}: {job.progress.completed} of {job.progress.total} samples completed, "
            f"{len(sessions)} sessions" + (f"; {job.error.message}" if job.error else "")
        )
    accuracy = job.results().conditions["baseline"].metrics.get(STRICT)
    # one wrong answer is allowed however few the problems are
    allowed = max(1.0, (1 - LEAST_ACCURACY) * len(sessions))
    if accuracy is None or (1 - accuracy) * len(sessions) > allowed + 1e-9:
        raise DemoFailed(f"{STRICT} is {accuracy}; at least {LEAST_ACCURACY} was expected of this model")


def _report(job: "JobHandle", sessions: "list[SessionHandle]") -> None:
    """Print the scores, the rate and some activations."""
    from actograph.cli.sessions import COLUMNS

    assert job.finished_at is not None
    seconds = max(1, job.finished_at - job.created_at)
    emit("\n" + results_table(job.results(), job.spec.get("num_fewshot")))
    emit(f"\nRate:      {len(sessions) / seconds:.1f} samples/s, from submit to stored")
    emit(
        f"Kept:      {len(sessions)} sessions, {size(sum(session.bytes for session in sessions))}, "
        f"every token of {len(sessions[0].hooks)} hooks"
    )
    emit(f"\n{table(COLUMNS, sessions[:5])}\n")
    hook = list(sessions[0].hooks)[-1]
    tensor = sessions[0][hook]
    values = " ".join(f"{value:.4f}" for value in tensor[-1][:6])
    emit(f"Tensor:    {hook} of {sessions[0].id}")
    emit(f"           shape {list(tensor.shape)}, dtype {tensor.dtype}, last row begins {values}")


def _next_steps(home: Path, served: str, session_id: str) -> str:
    """Return commands to paste."""
    running = Path(sys.argv[0])
    named = running.name != "actograph" or shutil.which("actograph") is not None
    program = "actograph" if named else os.path.relpath(running)
    commands = [
        [program, "up", "--home", os.path.relpath(home), "--model", served, THREADS],
        [program, "sessions", "ls"],
        [program, "sessions", "show", session_id],
        [program, "sessions", "pull", session_id, "--out", "pulled"],
    ]
    first, *others = ("  " + shlex.join(command) for command in commands)
    return "\n".join(["", "Next:", first, "and in another terminal:", *others])
