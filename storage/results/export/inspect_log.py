"""A log that `inspect view` and `inspect_ai.log.read_eval_log` open, one for each condition.

An `.eval` file is a zip of JSON: `header.json`, `summaries.json` and `samples/<id>_epoch_<n>.json`
(https://inspect.aisi.org.uk/eval-logs.html and inspect_ai's log/_log.py, log schema 2). A score has the name
of its scorer's filter (`strict-match`), or of its metric without a filter.
"""

import json
import shutil
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import sha256
from typing import IO, Any

from actograph import __version__
from actograph.contract.resources import JobStatus, Sample, SampleStatus
from actograph.contract.tool_calls import MalformedCall, ToolCall, recorded_calls, text_before_calls
from storage.results.export.archive import CHUNK, new_spool
from storage.results.export.inspect_events import events_of
from storage.results.export.of_condition import ConditionRun, Origin, dataset_name, safe_part
from storage.results.export.sample import messages_of

SCHEMA_VERSION = 2
_STATUS = {
    JobStatus.COMPLETED: "success",
    JobStatus.CANCELLED: "cancelled",
    JobStatus.FAILED: "error",
}
_STOP = {"stop": "stop", "length": "max_tokens", "readout": "stop"}
#: characters of a text in a summary, as inspect_ai shortens it
_SUMMARY_CHARS = 1024


class InspectLog:
    """Collects the samples of one condition."""

    def __init__(self, run: ConditionRun, spools: ExitStack) -> None:
        self._run = run
        self._spool = spools.enter_context(new_spool())
        self._zip = spools.enter_context(zipfile.ZipFile(self._spool, "w"))
        self._summaries = spools.enter_context(new_spool())
        self._ids: dict[int, None] = {}
        self._completed = 0
        self._logged = 0
        self._scored: dict[str, int] = {}
        self._names = _names(run.results.metrics)
        self._usage = _usage(0, 0)
        #: with the name of our provider, as in logs of Inspect's own runs
        self._model = f"actograph/{run.job.model}"

    def add(self, sample: Sample) -> None:
        record = self._sample(sample)
        self._ids[record["id"]] = None
        self._write(f"samples/{record['id']}_epoch_{record['epoch']}.json", record)
        separator = b"," if self._logged else b"["
        self._summaries.write(separator + _json(_summary(record)))
        self._logged += 1
        self._completed += sample.status == SampleStatus.COMPLETED
        for key in sample.scores:
            self._scored[key] = self._scored.get(key, 0) + 1
        for name, count in _usage(sample.prompt_tokens, sample.generated_tokens).items():
            self._usage[name] += count

    def files(self, origin: Origin, _exported_at: int) -> Iterator[tuple[str, IO[bytes]]]:
        """The path of the log and its content."""
        header = {
            "version": SCHEMA_VERSION,
            "status": _STATUS.get(self._run.job.status, "started"),
            "eval": self._spec(origin),
            "plan": self._plan(),
            "results": self._results(),
            "stats": self._stats(),
        }
        if header["status"] == "error":
            error = self._run.job.error
            header["error"] = _error(error.message if error else "the job failed")
        self._summaries.write(b"]" if self._logged else b"[]")
        with self._zip.open(self._entry("summaries.json"), "w") as out:
            self._summaries.seek(0)
            shutil.copyfileobj(self._summaries, out, CHUNK)
        self._write("header.json", header)
        self._zip.close()
        yield self._path(), self._spool

    def _path(self) -> str:
        """`<time>_<task>_<id>.eval`, as Inspect expects it: no part has an underscore."""
        created = _iso(self._run.job.created_at).replace(":", "-").replace("+", "-")
        task = safe_part(self._run.task, "task").replace("_", "-")
        if self._run.is_one_of_several:
            task += "-" + safe_part(self._run.condition.name, "condition").replace("_", "-")
        return f"inspect/{created}_{task}_{self._id('task')[:22]}.eval"

    def _id(self, what: str) -> str:
        return sha256(f"{what}:{self._run.job.id}:{self._run.condition.name}".encode()).hexdigest()

    def _write(self, name: str, value: Any) -> None:
        self._zip.writestr(self._entry(name), _json(value))

    def _entry(self, name: str) -> zipfile.ZipInfo:
        """An entry with the time of the job, so that a repeated export has the same bytes."""
        entry = zipfile.ZipInfo(name, time.gmtime(self._run.job.created_at)[:6])
        entry.compress_type = zipfile.ZIP_DEFLATED
        return entry

    def _spec(self, origin: Origin) -> dict[str, Any]:
        run, job, spec = self._run, self._run.job, self._run.spec
        condition = run.condition
        arguments = {
            "condition": condition.name,
            "system": condition.system,
            "prefix": condition.prefix,
            "suffix": condition.suffix,
            "tools": list(spec.tools_of(condition)),
            "num_fewshot": spec.num_fewshot,
            "enable_thinking": spec.enable_thinking,
        }
        name = f"{run.task} ({condition.name})" if run.is_one_of_several else run.task
        return {
            "eval_id": self._id("eval")[:22],
            "run_id": job.id,
            "created": _iso(job.created_at),
            "task": run.task,
            "task_id": self._id("task")[:22],
            "task_version": 0,
            "task_display_name": name,
            "task_args": arguments,
            "solver": "generate",
            "tags": list(job.tags) or None,
            "dataset": {
                "name": dataset_name(spec),
                "samples": len(self._ids),
                "sample_ids": list(self._ids),
                "shuffled": False,
            },
            "model": self._model,
            "config": {
                "limit": [spec.offset, spec.offset + spec.limit] if spec.limit else None,
                "epochs": spec.epochs,
                "epochs_reducer": ["mean"],
                "fail_on_error": False,
            },
            "packages": {"actograph": __version__, **origin.versions},
            "metadata": {"job_id": job.id, "revision": origin.revision, **job.metadata},
            "scorers": [{"name": name} for name in self._names.values()],
        }

    def _config(self) -> dict[str, Any]:
        sampling = self._run.sampling
        return {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
            "stop_seqs": self._run.stop or None,
        }

    def _plan(self) -> dict[str, Any]:
        return {"name": "plan", "steps": [{"solver": "generate", "params": {}}], "config": self._config()}

    def _results(self) -> dict[str, Any]:
        metrics = self._run.results.metrics
        scores = []
        for key, name in self._names.items():
            metric, _, of_filter = key.partition(",")
            of_key = {
                _metric_name(other.partition(",")[0], metric): value
                for other, value in metrics.items()
                if other.partition(",")[2] == of_filter and value is not None and _base(other) == metric
            }
            scores.append(
                {
                    "name": name,
                    "scorer": name,
                    "reducer": "mean",
                    "scored_samples": self._scored.get(key, 0),
                    "unscored_samples": self._logged - self._scored.get(key, 0),
                    "metrics": {one: {"name": one, "value": value} for one, value in of_key.items()},
                }
            )
        total = self._run.job.progress.total // len(self._run.spec.conditions)
        return {"total_samples": total, "completed_samples": self._completed, "scores": scores}

    def _stats(self) -> dict[str, Any]:
        job = self._run.job
        return {
            "started_at": _iso(job.started_at) if job.started_at is not None else "",
            "completed_at": _iso(job.finished_at) if job.finished_at is not None else "",
            "model_usage": {self._model: self._usage},
        }

    def _sample(self, sample: Sample) -> dict[str, Any]:
        messages = list(_messages(sample, self._run.job.model))
        usage = _usage(sample.prompt_tokens, sample.generated_tokens)
        answers = [message for message in messages if message["role"] == "assistant"]
        seconds = None
        if sample.started_at is not None and sample.finished_at is not None:
            seconds = float(sample.finished_at - sample.started_at)
        record: dict[str, Any] = {
            "id": sample.sample_index + 1,
            "epoch": sample.epoch + 1,
            "uuid": sample.id,
            "input": sample.input["question"],
            "target": sample.input["answer"],
            "messages": messages,
            "output": {
                "model": self._run.job.model,
                "choices": [
                    {"message": answers[-1], "stop_reason": _STOP.get(sample.finish_reason or "", "unknown")}
                ]
                if answers
                else [],
                "completion": sample.completion or "",
                "usage": usage,
                "time": seconds,
            },
            "scores": {
                self._names[key]: {"value": score.value, "answer": score.answer}
                for key, score in sample.scores.items()
            },
            "metadata": {
                "condition": sample.condition,
                "seed": sample.seed,
                "session_id": sample.session_id,
                "finish_reason": sample.finish_reason,
            },
            "store": {},
            "model_usage": {self._model: usage},
            "started_at": _iso(sample.started_at) if sample.started_at is not None else None,
            "completed_at": _iso(sample.finished_at) if sample.finished_at is not None else None,
            "total_time": seconds,
            "working_time": seconds,
            "attachments": {},
        }
        if sample.tool_use is not None:
            record["metadata"]["tool_use"] = sample.tool_use.model_dump()
        if sample.error is not None:
            record["error"] = _error(sample.error.message)
        start = sample.started_at or self._run.job.created_at
        times = _iso(start), _iso(sample.finished_at or start)
        return record | {"events": list(events_of(record, self._config(), *times))}


def _messages(sample: Sample, model: str) -> Iterator[dict[str, Any]]:
    """The rendered prompt, then the turns, with calls and results in pairs."""
    if sample.prompt is not None:
        yield {"id": f"{sample.id}-0", "role": "user", "source": "input", "content": sample.prompt}
    waiting: list[dict[str, Any]] = []
    for number, message in enumerate(messages_of(sample), start=1):
        message_id = f"{sample.id}-{number}"
        if message.role == "assistant":
            calls = recorded_calls(message.content) if sample.messages else []
            waiting = [_call(call, f"{message_id}-{place}") for place, call in enumerate(calls, start=1)]
            answer: dict[str, Any] = {
                "id": message_id,
                "role": "assistant",
                "source": "generate",
                "model": model,
                "content": text_before_calls(message.content) if waiting else message.content,
            }
            yield answer | ({"tool_calls": list(waiting)} if waiting else {})
            continue
        call = waiting.pop(0) if waiting else {"id": None, "function": None}
        result: dict[str, Any] = {
            "id": message_id,
            "role": "tool",
            "content": message.content,
            "tool_call_id": call["id"],
            "function": call["function"],
        }
        if message.error:
            kind = "parsing" if call.get("parse_error") else "unknown"
            result["error"] = {"type": kind, "message": message.content}
        yield result


def _call(call: ToolCall | MalformedCall, call_id: str) -> dict[str, Any]:
    made: dict[str, Any] = {"id": call_id, "type": "function"}
    if isinstance(call, MalformedCall):
        return made | {"function": "unknown", "arguments": {}, "parse_error": call.reason}
    return made | {"function": call.name, "arguments": dict(call.arguments)}


def _summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """Summary of a sample for Inspect's list."""
    kept = (
        "id", "epoch", "uuid", "scores", "metadata", "model_usage", "started_at", "completed_at",
        "total_time", "working_time",
    )  # fmt: skip
    return {
        **{name: record[name] for name in kept},
        "input": record["input"][:_SUMMARY_CHARS],
        "target": record["target"][:_SUMMARY_CHARS],
        "error": record["error"]["message"] if "error" in record else None,
        "completed": True,
        "message_count": len(record["messages"]),
    }


def _names(metrics: Iterable[str]) -> dict[str, str]:
    """Metric key of a scorer -> name of its score: its filter, or its metric without a filter.

    If two names are equal (a label is another scorer's metric), all scores keep their whole keys.
    """
    short = {}
    for key in metrics:
        metric, _, of_filter = key.partition(",")
        if _base(key) == metric:
            short[key] = metric if of_filter == "none" else of_filter
    return short if len(set(short.values())) == len(short) else {key: key for key in short}


def _base(key: str) -> str:
    """The metric behind a key: `exact_match` for `exact_match`, `exact_match_stderr` and `pass@2`."""
    metric = key.partition(",")[0].removesuffix("_stderr")
    for mark in ("pass@", "maj@"):
        before, found, _ = metric.partition(mark)
        if found:
            return before.removesuffix("_") or "exact_match"
    return metric


def _metric_name(metric: str, base: str) -> str:
    """`mean` and `stderr` as in Inspect; metrics of several epochs keep their names."""
    if metric == base:
        return "mean"
    return "stderr" if metric == f"{base}_stderr" else metric


def _usage(given: int | None, generated: int | None) -> dict[str, int]:
    given, generated = given or 0, generated or 0
    return {"input_tokens": given, "output_tokens": generated, "total_tokens": given + generated}


def _error(message: str) -> dict[str, str]:
    return {"message": message, "traceback": "", "traceback_ansi": ""}


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
