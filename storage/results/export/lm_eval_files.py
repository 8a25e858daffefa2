"""lm-eval's own files: `results_<date>.json` and `samples_<task>_<date>.jsonl`.

They have the format of `EvaluationTracker` in lm-eval 0.4.13
(https://github.com/EleutherAI/lm-evaluation-harness, loggers/evaluation_tracker.py, evaluator.py). A line of
samples is one problem under one filter. All problems of a filter are consecutive. The epochs of a problem are
its repeats, and its value is their mean.
"""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import sha256
from typing import IO, Any

from actograph import __version__
from actograph.contract.resources import Sample, SampleStatus
from actograph.contract.tasks import LM_EVAL_VERSION, TaskSpec
from storage.results.export.archive import CHUNK, new_spool
from storage.results.export.of_condition import ConditionRun, Origin, dataset_name, safe_part
from storage.results.export.sample import json_line

#: result of lm-eval's filters that find nothing
NOT_FOUND = "[invalid]"


class LmEvalFiles:
    """Collects the samples of one condition, in the order of their problems."""

    def __init__(self, run: ConditionRun, spools: ExitStack) -> None:
        self._run = run
        self._spools = spools
        #: filter -> its lines
        self._lines: dict[str, IO[bytes]] = {}
        #: of problem, prompt and target of each line of a filter
        self._hashes: list[str] = []
        self._epochs: list[Sample] = []

    def add(self, sample: Sample) -> None:
        if sample.status != SampleStatus.COMPLETED:
            return  # lm-eval has no failed samples
        if self._epochs and self._epochs[0].sample_index != sample.sample_index:
            self._flush()
        self._epochs.append(sample)

    def files(self, origin: Origin, exported_at: int) -> Iterator[tuple[str, bytes | IO[bytes]]]:
        """Path and content of both files."""
        if self._epochs:
            self._flush()
        job = self._run.job
        moment = datetime.fromtimestamp(job.finished_at or exported_at, UTC).replace(tzinfo=None)
        date = moment.isoformat(timespec="microseconds").replace(":", "-")
        folder = "lm_eval/"
        if self._run.is_one_of_several:
            folder += f"{safe_part(self._run.condition.name, 'condition')}/"
        folder += safe_part(job.model, "model")
        task = self._run.task
        results = json.dumps(self._results(origin, exported_at), indent=2, ensure_ascii=False).encode()
        yield f"{folder}/results_{date}.json", results
        with new_spool() as content:
            for lines in self._lines.values():
                lines.seek(0)
                shutil.copyfileobj(lines, content, CHUNK)
            yield f"{folder}/samples_{safe_part(task, 'task')}_{date}.jsonl", content

    def _flush(self) -> None:
        first, count = self._epochs[0], len(self._epochs)
        doc = _doc(first)
        hashes = {
            "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
            "prompt_hash": _hash(first.prompt or ""),
            "target_hash": _hash(str(first.input["answer"])),
        }
        by_filter: dict[str, list[str]] = {}
        for key in first.scores:
            by_filter.setdefault(key.partition(",")[2], []).append(key)
        for name, keys in by_filter.items():
            answers = [
                NOT_FOUND if sample.scores[keys[0]].answer is None else str(sample.scores[keys[0]].answer)
                for sample in self._epochs
            ]
            line: dict[str, Any] = {
                "doc_id": first.sample_index,
                "doc": doc,
                "target": str(first.input["answer"]),
                "arguments": {"gen_args_0": {"arg_0": first.prompt, "arg_1": self._generation()}},
                "resps": [[sample.completion for sample in self._epochs]],
                "filtered_resps": answers if count == 1 else [answers],
                "filter": name,
                "metrics": [key.partition(",")[0] for key in keys],
                **hashes,
            }
            for key in keys:
                values = [sample.scores[key].value for sample in self._epochs]
                line[key.partition(",")[0]] = math.fsum(values) / count
            if name not in self._lines:
                self._lines[name] = self._spools.enter_context(new_spool())
            self._lines[name].write(json_line(line))
        self._hashes.append("".join(hashes.values()))
        self._epochs.clear()

    def _generation(self) -> dict[str, Any]:
        sampling = self._run.sampling
        chosen: dict[str, Any] = {
            "until": self._run.stop,
            "do_sample": sampling.temperature > 0,
            "temperature": sampling.temperature,
            "max_gen_toks": sampling.max_tokens,
        }
        if sampling.temperature > 0:
            chosen |= {"top_p": sampling.top_p} | ({"top_k": sampling.top_k} if sampling.top_k else {})
        return chosen

    def _results(self, origin: Origin, exported_at: int) -> dict[str, Any]:
        run, job, spec = self._run, self._run.job, self._run.spec
        task = run.task
        metrics = {key: "N/A" if value is None else value for key, value in run.results.metrics.items()}
        plain = [key.partition(",")[0] for key in metrics if "_stderr," not in key]
        version = LM_EVAL_VERSION if isinstance(spec.task, str) else None
        system = run.condition.system
        seconds = (job.finished_at or exported_at) - (job.started_at or job.created_at)
        return {
            "results": {
                task: {"name": task, "alias": task, "sample_len": len(self._hashes), **metrics},
            },
            "group_subtasks": {task: []},
            "configs": {task: self._config(version)},
            "versions": {task: version},
            "n-shot": {task: spec.num_fewshot},
            "higher_is_better": {task: dict.fromkeys(plain, True)},
            "n-samples": {task: {"original": self._planned(), "effective": len(self._hashes)}},
            "config": {
                "model": "actograph",
                "model_args": {"pretrained": job.model, "revision": origin.revision},
                "model_revision": origin.revision or "",
                "batch_size": "auto",
                "batch_sizes": [],
                "device": None,
                "use_cache": None,
                "limit": spec.limit,
                "bootstrap_iters": 0,
                "gen_kwargs": self._generation(),
                "random_seed": spec.sampling.seed,
                "numpy_seed": spec.sampling.seed,
                "torch_seed": spec.sampling.seed,
                "fewshot_seed": 1234,
            },
            "git_hash": None,
            "date": float(job.started_at or job.created_at),
            "pretty_env_info": f"Actograph {__version__}, job {job.id}, condition {run.condition.name}",
            "transformers_version": origin.versions.get("transformers"),
            # readers want a text; lm-eval had no part in these results
            "lm_eval_version": f"actograph {__version__}",
            "upper_git_hash": None,
            "task_hashes": {task: _hash("".join(self._hashes) * len(self._lines))},
            "model_source": "actograph",
            "model_name": job.model,
            "model_name_sanitized": safe_part(job.model, "model"),
            "system_instruction": system,
            "system_instruction_sha": _hash(system) if system else None,
            "fewshot_as_multiturn": spec.fewshot_as_multiturn,
            "chat_template": None,
            "chat_template_sha": origin.template_sha256,
            "total_evaluation_time_seconds": str(float(seconds)),
        }

    def _config(self, version: float | None) -> dict[str, Any]:
        run, spec = self._run, self._run.spec
        own = spec.task if isinstance(spec.task, TaskSpec) else None
        keys = list(run.results.metrics)
        metrics = dict.fromkeys(key.partition(",")[0] for key in keys if "_stderr," not in key)
        config: dict[str, Any] = {
            "task": run.task,
            "dataset_path": dataset_name(spec),
            "output_type": "generate_until",
            "num_fewshot": spec.num_fewshot,
            "generation_kwargs": self._generation(),
            "repeats": spec.epochs,
            "metric_list": [
                {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in metrics
            ],
            "filter_list": [{"name": name} for name in self._lines],
            "should_decontaminate": False,
            "metadata": {"version": version, "condition": run.condition.name, "job_id": run.job.id},
        }
        if own is not None:
            config |= {"doc_to_text": own.prompt, "doc_to_target": own.target}
        return config

    def _planned(self) -> int:
        """Problems of the job. The size of its whole dataset is unknown."""
        each = len(self._run.spec.conditions) * self._run.spec.epochs
        return self._run.job.progress.total // each


def _doc(sample: Sample) -> dict[str, Any]:
    given = sample.input
    return {"question": given["question"], "answer": given["answer"], **given.get("columns", {})}


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()
