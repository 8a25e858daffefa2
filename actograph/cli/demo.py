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
    from actograph.client import Client
    from actograph.client.jobs import JobHandle
    from actograph.client.sessions import SessionHandle
    from actograph.contract.resources import Job, JobResults

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
    keep: bool = typer.Option(False, "--keep", help="Keep the service running until Ctrl-C."),
) -> None:
    """Try it: evaluate a tiny model with capture, and read its activations.

    Needs neither a network nor a GPU. The sessions stay on disk; the service is stopped at the end.
    """
    from actograph.client import Client
    from actograph.demo import MODEL_DIR
    from actograph.stack.stack_process import StackProcess
    from actograph.stack.up import require_installed

    require_installed()
    home = home.absolute()
    served = f"demo={MODEL_DIR}"
    arguments = [f"--home={home}", "--host=127.0.0.1", "--port=0", f"--model={served}", THREADS]
    # the settings of the user's shell are for another service
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTOGRAPH_")}
    note("1/4 starting a service")
    with StackProcess(arguments, environment | {"HF_HUB_OFFLINE": "1"}) as service:
        with Client(service.url, "") as client:
            note("2/4 uploading problems and submitting an evaluation that keeps activations")
            job = _submit(client, limit)
            note(f"3/4 running {job.id}")
            job = client.jobs.wait(job.id, progress=True)
            if job.status != "completed":
                raise DemoFailed(f"the job {job.status}" + (f": {job.error.message}" if job.error else ""))
            note("4/4 reading the activations back")
            results = job.results()
            sessions = _check(client, job, results)
            _report(client, job, results, sessions)
        emit(f"Files:     {home / 'artifacts' / 'sessions'}/<session id>/")
        emit(_next_steps(home, served, sessions[0].id, service.url if keep else None))
        if keep:
            note("the service runs until Ctrl-C")
            service.wait()


def _submit(client: "Client", limit: int) -> "JobHandle":
    from actograph.demo import PROBLEMS

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
    return client.submit(spec)


def _check(client: "Client", job: "JobHandle", results: "JobResults") -> "list[SessionHandle]":
    """Return the job's sessions, one per sample.

    Raises:
        DemoFailed: a sample failed, a session cannot be read, or the accuracy is too low.
    """
    sessions = {session.id: session for session in client.sessions.list(job_id=job.id)}
    samples = list(job.samples())
    if not samples or len(samples) != job.progress.total:
        raise DemoFailed(f"the job has {job.progress.total} samples, {len(samples)} are listed")
    for sample in samples:
        session = sessions.get(sample.session_id or "")
        if session is None:
            reason = sample.error.message if sample.error else "its session is not in the index"
            raise DemoFailed(f"sample {sample.index} is {sample.status}: {reason}")
        hook, info = next(iter(session.hooks.items()))
        last = session[hook][session.rows - 1 : session.rows]
        if last.shape != (1, info.shape[1]):
            raise DemoFailed(f"session {session.id}: the last row of {hook} has the shape {last.shape}")
    accuracy = results.conditions["baseline"].metrics.get(STRICT)
    # one wrong answer is allowed however few the problems are
    allowed = max(1.0, (1 - LEAST_ACCURACY) * len(samples))
    if accuracy is None or (1 - accuracy) * len(samples) > allowed + 1e-9:
        raise DemoFailed(f"{STRICT} is {accuracy}; at least {LEAST_ACCURACY} was expected of this model")
    return [sessions[sample.session_id] for sample in samples if sample.session_id is not None]


def _report(client: "Client", job: "Job", results: "JobResults", sessions: "list[SessionHandle]") -> None:
    """Print the scores, the rate and some activations."""
    from actograph.cli.sessions import COLUMNS

    submitted, *_, ended = client.jobs.events(job.id)
    seconds = ended.created_at - submitted.created_at
    tokens = sum(session.generated_tokens for session in sessions)
    emit("\n" + results_table(results, job.spec.get("num_fewshot")))
    emit(
        f"\nRate:      {len(sessions) / seconds:.1f} samples/s, {tokens / seconds:.0f} tokens/s generated "
        f"({len(sessions)} samples in {seconds:.1f} s, from submit to stored)"
    )
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


def _next_steps(home: Path, served: str, session_id: str, url: str | None) -> str:
    """Return commands to paste; `url` is that of the running service, None if it is stopped."""
    program = _program_name()
    folder = min(os.path.relpath(home), str(home), key=len)
    client = [program, "--url", url] if url else [program]
    commands = [
        [*client, "sessions", "ls"],
        [*client, "sessions", "show", shorten(session_id)],
        [*client, "sessions", "pull", shorten(session_id), "--out", "pulled"],
    ]
    lines = ["", "Next:"]
    if not url:
        lines.append("  " + shlex.join([program, "up", "--home", folder, "--model", served, THREADS]))
        lines.append("and in another terminal:")
    return "\n".join([*lines, *("  " + shlex.join(command) for command in commands)])


def _program_name() -> str:
    """Return the name or path of the running `actograph`."""
    running, found = Path(sys.argv[0]), shutil.which("actograph")
    if running.name != "actograph" or (found is not None and Path(found).resolve() == running.resolve()):
        return "actograph"
    shown = os.path.relpath(running)
    return shown if not shown.startswith("..") and os.sep in shown else str(running.absolute())
