"""`actograph jobs`: submit, list, show, watch, cancel, retry, remove, read samples, export."""

import json
import os
import shutil
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from actograph.cli import job_flags, job_tables
from actograph.cli.flags import (
    LIST_FLAGS,
    IdArgument,
    IdArguments,
    ScorersOption,
    YesOption,
    names,
    scorers_of,
)
from actograph.cli.shell import (
    ERROR,
    GlobalOptions,
    Shell,
    ask,
    command,
    emit,
    end,
    job_status_code,
    note,
    on_interrupt,
)
from actograph.contract.errors import InvalidRequest
from actograph.short_texts import shorten
from actograph.tables import Columns, clean, cut

if TYPE_CHECKING:
    from actograph.client.jobs import JobHandle
    from actograph.contract.resources import JobResults, Sample

app = typer.Typer(no_args_is_help=True, help="Submit, follow and control jobs.")

#: flags of a job that `eval` lacks
NOT_OF_EVAL = ("spec", "kind", "task", "prompt", "sessions", "tolerance", "text_field", "truncate", "mode")


@command(
    app,
    "submit",
    job_flags.job_options(),
    [
        "actograph jobs submit --task gsm8k --dataset test.jsonl --capture resid_post@all --watch",
        "actograph jobs submit --kind replay --sessions job_3fa2 --capture mlp_in,mlp_out@all",
        "actograph jobs submit --prompt 'Once upon a time' --max-tokens 50 --capture resid_post.1",
        "actograph jobs submit job.json --tag night --priority 8",
    ],
)
def submit(
    shell: Shell,
    *,
    watch: bool = typer.Option(False, "--watch", "-w", help="Follow the job to its end."),
    **given: Any,
) -> "JobHandle":
    """Submit a job and print its id. Flags override the file."""
    drafted = job_flags.draft_of(**given)
    is_default = (drafted.body.get("capture") or {}).get("layers") is None
    job = shell.client.submit(drafted, progress=True)
    shell.show(job, lambda job: str(job.id))
    if is_default and (layers := (job.spec.get("capture") or {}).get("layers")):
        note(f"captures layers {', '.join(map(str, layers))}; choose others with --capture POINTS@LAYERS")
    return follow(shell, job.id) if watch else job


def evaluate(
    shell: Shell,
    task: str = typer.Argument(metavar="TASK|TASK.yaml", help="Name of a task, or a YAML file."),
    *,
    watch: bool = typer.Option(True, help="Follow the job to its end."),
    **given: Any,
) -> None:
    """Run a task and print its scores: the name of a task, or a YAML file.

    With two or more conditions, a comparison with the first one follows. Built-in tasks read their rows
    from the Hugging Face Hub unless --dataset is given.
    """
    submit(shell, watch=watch, task=task, kind="evaluation", **given)


@command(app)
def rescore(shell: Shell, job: IdArgument, *, scorer: ScorersOption = None) -> None:
    """Score a job's stored completions with other scorers, without a worker.

    The first scorer decides `correct`. Scores of other scorers are kept.
    """
    if not scorer:
        raise InvalidRequest("--scorer is missing; for example --scorer numeric")
    scored = _job(shell, job)
    shell.show(scored.rescore(scorers_of(scorer)), partial(_results, scored))


@command(app, "ls", LIST_FLAGS)
def list_jobs(
    shell: Shell,
    *,
    status: str | None = typer.Option(None, help="Jobs of this status: queued, in_progress, completed, ..."),
    kind: str | None = typer.Option(None, help="Jobs of this kind: evaluation, capture, ..."),
    tag: str | None = typer.Option(None, help="Jobs with this tag."),
    **shown: Any,
) -> None:
    """List jobs, newest first."""
    columns: Columns = (
        "job id=id", "kind", "model", ("status", job_tables.status_text), "eta=eta_seconds", "priority",
        "age=created_at", "tags",
    )  # fmt: skip
    shell.rows(shell.client.jobs.list(status=status, kind=kind, tag=tag), columns, **shown)


@command(app)
def show(shell: Shell, job: IdArgument) -> None:
    """Show a job and its current results."""
    found = _job(shell, job)
    shell.show(found, job_tables.describe_job)
    if not shell.json and found.progress.completed:
        results = found.results()
        if results.conditions:
            emit("\n" + _results(found, results))


@command(app, "samples", {name: flag for name, flag in LIST_FLAGS.items() if name != "quiet"})
def samples(
    shell: Shell,
    job: IdArgument,
    *,
    status: str | None = typer.Option(None, help="Samples of this status: pending, completed, failed, ..."),
    condition: str | None = typer.Option(None, help="Samples of this condition."),
    correct: bool | None = typer.Option(None, "--correct/--incorrect", help="Verdict of the first scorer."),
    **shown: Any,
) -> None:
    """List a job's samples: texts, verdicts and errors. JSON includes all fields."""
    width = max(100, shutil.get_terminal_size((120, 24)).columns)
    columns: Columns = (
        "sample_index", "condition", "epoch", "status", ("correct", verdict), "tokens=generated_tokens",
        "session_id", ("completion or error", lambda sample: cut(_text(sample), width)),
    )  # fmt: skip
    found = _job(shell, job).samples(status=status, condition=condition)
    matching = (sample for sample in found if correct is None or verdict(sample) is correct)
    shell.rows(matching, columns, width=width, **shown)


@command(app)
def watch(shell: Shell, job: IdArgument) -> None:
    """Follow a job to its end. Exit status: 0 completed, 1 failed, 2 cancelled."""
    follow(shell, shell.id("job", job))


@command(app)
def cancel(shell: Shell, jobs: IdArguments) -> None:
    """Cancel jobs. Finished samples are kept."""
    shell.each("job", jobs, shell.client.jobs.cancel)


@command(app)
def retry(shell: Shell, jobs: IdArguments) -> None:
    """Run the failed and missing samples of ended jobs again."""
    shell.each("job", jobs, shell.client.jobs.retry)


@command(app, "rm")
def remove(
    shell: Shell,
    jobs: IdArguments,
    *,
    include_pinned: bool = typer.Option(False, "--include-pinned", help="Delete pinned sessions too."),
    yes: YesOption = False,
) -> None:
    """Delete ended jobs with their samples and sessions."""
    if not yes:
        what = "1 job with its" if len(jobs) == 1 else f"{len(jobs)} jobs with their"
        ask(f"Delete {what} samples and sessions?")
    shell.each("job", jobs, partial(shell.client.jobs.delete, include_pinned=include_pinned))


@command(app, "export", examples=["actograph jobs export job_3fa2 --out night-run --activations sampled"])
def export(
    shell: Shell,
    job: IdArgument,
    *,
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder. Default: the job id."),
    activations: Literal["none", "meta", "sampled", "all"] = typer.Option(
        "meta", help="meta: shapes and sizes; sampled: 50 features of each row; all: every file."
    ),
) -> None:
    """Download a job's results folder, also while the job runs."""
    found = _job(shell, job)
    folder = out or Path(found.id)
    with on_interrupt(f"interrupted; {folder} is incomplete: run the same command again"):
        pulled = found.export(folder, activations=activations, progress=True)
    if not pulled.complete:
        note(f"the job has not ended: {pulled.samples} samples so far; run this again for the others")
    shown = {"folder": str(pulled.folder), "samples": pulled.samples, "complete": pulled.complete}
    emit(json.dumps(shown) if shell.json else str(pulled.folder))


@command(app, "arrays", examples=["actograph jobs arrays job_3fa2 --out texts.safetensors --sequence 2048"])
def write_arrays(
    shell: Shell,
    job: IdArgument,
    *,
    out: Path = typer.Option(..., "--out", "-o", help="File that ends in .safetensors or .npz."),
    hooks: list[str] = typer.Option([], help="Hooks (commas or repeated). Default: all."),
    sequence: int | None = typer.Option(None, min=1, help="Pack texts into sequences of so many tokens."),
) -> None:
    """Download a job's rows as arrays [batch, sequence, width], one per hook, in one file."""
    made = _job(shell, job).write_arrays(out, hooks=names(hooks), sequence=sequence, progress=True)
    emit(json.dumps({"file": str(made)}) if shell.json else str(made))


@command(
    app,
    "compare",
    examples=[
        "actograph jobs compare job_3fa2",
        "actograph jobs compare job_3fa2 --texts --hooks resid_post",
    ],
)
def compare(
    shell: Shell,
    job: IdArgument,
    *,
    baseline: str | None = typer.Option(None, help="Baseline condition. Default: the first."),
    level: float | None = typer.Option(None, help="Coverage of the intervals. (default: 0.95)"),
    texts: bool = typer.Option(
        False, "--texts", help="Show the texts side by side, where they part, and the shift of captured rows."
    ),
    hooks: list[str] = typer.Option(
        [], help="With --texts: hooks, or points for all layers (commas or repeated). Default: all."
    ),
    limit: int | None = typer.Option(None, min=1, help="With --texts: number of problems. (default: 10)"),
    offset: int | None = typer.Option(None, min=0, help="With --texts: problems to leave out first."),
) -> None:
    """Compare a job's conditions problem by problem: scores and lengths, or texts.

    `actograph analyse compare` compares activations.
    """
    compared = _job(shell, job)
    if texts:
        if level is not None:
            raise InvalidRequest("--level is for scores; leave it out with --texts")
        found = compared.compare_texts(
            baseline=baseline, hooks=names(hooks), limit=limit or 10, offset=offset or 0
        )
        shell.show(found)
        if found.has_more:
            note(f"only {len(found.data)} problems; show more with --limit and --offset")
        return
    if hooks or limit is not None or offset is not None:
        raise InvalidRequest("--hooks, --limit and --offset need --texts")
    shell.show(compared.comparison(baseline=baseline, level=level))


def estimate(
    shell: Shell,
    *,
    prompt_tokens: int | None = typer.Option(None, min=1, help="Assumed length of every prompt."),
    card: str | None = typer.Option(
        None,
        help="Memory of a GPU, such as 24GiB: estimate what fits on it, from the config.json of a model that "
        "nothing serves. --model is its folder or Hub id.",
    ),
    tensor_parallel: int | None = typer.Option(None, min=1, help="With --card: GPUs that share each layer."),
    model_dtype: str | None = typer.Option(
        None, help="With --card: of the weights: auto, float32, float16 or bfloat16."
    ),
    slots: int | None = typer.Option(None, min=1, help="With --card: samples at once, at most."),
    **given: Any,
) -> None:
    """Estimate the memory and disk of a job. Exit status 1: it does not fit.

    With --card, estimate a model that no worker serves: weights, keys and values, captured rows, and how many
    samples of which length fit on such a card. This needs the installed service, and no running one.
    """
    drafted = job_flags.draft_of(**given)
    if card is not None:
        from actograph.stack.card import estimate_card

        on_card = estimate_card(
            drafted.body,
            card,
            prompt_tokens=prompt_tokens,
            tensor_parallel=tensor_parallel,
            dtype=model_dtype,
            slots=slots,
        )
        shell.show(on_card, job_tables.describe_card)
        end(0 if on_card.fits else ERROR)
        return
    if any(value is not None for value in (tensor_parallel, model_dtype, slots)):
        raise InvalidRequest(
            "--tensor-parallel, --model-dtype and --slots need --card; a served model has its own"
        )
    drafted.complete(shell.client.models.only)
    sent: list[str] = []
    try:
        sent = drafted.upload(lambda path: shell.client.files.upload(path, progress=True).id)
        estimated = shell.client.jobs.estimate(drafted.body, prompt_tokens=prompt_tokens)
    finally:
        for file_id in sent:
            shell.client.files.delete(file_id)
    shell.show(estimated, job_tables.describe_estimate)
    end(ERROR if estimated.fits is False else 0)


def follow(shell: Shell, job_id: str) -> "JobHandle":
    """Show a job's progress until it ends, then its results. Ends the command unless the job completed.

    With several conditions, a comparison with the first one follows, as JSON on a line of its own.
    """
    with on_interrupt(f"job {job_id} continues; follow it with: actograph jobs watch {shorten(job_id)}"):
        job = shell.client.jobs.wait(job_id, progress=True, check=False)
        if job.progress.completed:
            _show_results(shell, job)
    if job.progress.failed and job.status != "failed":
        note(
            f"{job.progress.failed} of {job.progress.total} samples failed; "
            f"the reasons: actograph jobs samples {shorten(job.id)} --status failed"
        )
    reason = f": {clean(job.error.message)}" if job.error is not None else ""
    note(f"job {job.id} {job.status}{reason}")
    end(job_status_code(job.status))
    return job


def _show_results(shell: Shell, job: "JobHandle") -> None:
    results = job.results()
    if results.conditions or shell.json:
        shell.show(results, partial(_results, job))
    if job.kind == "patch":
        shell.show(job.patching().result, str)
    if job.kind == "evaluation" and len(job.spec.get("conditions") or ()) > 1:
        shell.show(job.comparison(), lambda found: f"\n{found}")
    generates = (job.spec.get("capture") or {}).get("mode") != "prefill"
    truncated = sum(condition.truncated for condition in results.conditions.values())
    if truncated and job.kind not in ("replay", "patch"):
        # mode prefill generates nothing: its texts were too long
        what = "samples ended at max_tokens" if generates else "texts were cut to the model's context"
        note(f"{truncated} of {job.progress.completed} {what}")
    if job.kind == "capture" and generates and not shell.json:
        several = len(job.spec.get("conditions") or ()) > 1
        note(f"the texts: actograph jobs {'compare --texts' if several else 'samples'} {shorten(job.id)}")
    for name, condition in results.conditions.items():
        if (use := condition.tool_use) is not None:
            note(
                f"{name}: {use.calling} of {use.samples} samples called tools, {use.calls} calls, "
                f"{use.errors} of them answered with an error"
            )


def _job(shell: Shell, typed: str) -> "JobHandle":
    return shell.client.jobs.get(shell.id("job", typed))


def _results(job: "JobHandle", results: "JobResults") -> str:
    return results.table(job.spec.get("num_fewshot"))


def verdict(sample: "Sample") -> bool | None:
    """Return the first scorer's verdict; None if the sample has no score."""
    first = next(iter(sample.scores.values()), None)
    return None if first is None else first.value == 1.0


def _text(sample: "Sample") -> str:
    if sample.error is not None:
        return f"{sample.error.type}: {sample.error.message}"
    return sample.completion or ""


def lm_eval(ctx: typer.Context) -> None:
    """Run lm-eval on a model of the service. Takes the arguments of `lm_eval`.

    Needs `pip install 'actograph[lm-eval]'`. See docs/guides/drivers.md for the keys of --model_args.
    """
    if find_spec("lm_eval") is None:
        raise InvalidRequest("lm-eval is not installed; use: pip install 'actograph[lm-eval]'")
    from lm_eval.__main__ import cli_evaluate

    from actograph.drivers import lm_eval_model  # registers the model, which lm-eval cannot find by itself

    options = ctx.ensure_object(GlobalOptions)
    for name, value in (("ACTOGRAPH_URL", options.url), ("ACTOGRAPH_API_KEY", options.api_key)):
        if value is not None:
            os.environ[name] = value
    typed = list(ctx.args)
    if not {"--model", "-M"} & {word.partition("=")[0] for word in typed}:
        typed += ["--model", lm_eval_model.NAME]
    sys.argv = ["lm_eval", *typed]
    cli_evaluate()
