"""Runs under lm-eval's own Python: what lm-eval does with GSM8K, with a task of choices, and with files.

    program.py ROWS SITE

Each line of standard input is a request, a JSON object; each line of standard output its answer. It is
started by `environment.LmEval`; nothing imports it. SITE is where torch and transformers are, which
only `evaluate` needs.
"""

import importlib
import io
import json
import sys
import tempfile
import time
from contextlib import redirect_stdout
from functools import cache, partialmethod
from pathlib import Path
from typing import Any

import yaml


def load_task(name: str, data: Path) -> Any:
    """The task as lm-eval configures it, but for where the rows lie."""
    tasks = importlib.import_module("lm_eval.tasks")
    api = importlib.import_module("lm_eval.api.task")
    folder = Path(str(tasks.__file__)).parent / "gsm8k"
    config = yaml.safe_load((folder / f"{name.replace('_', '-')}.yaml").read_text())
    files = {split: str(data / f"{split}.jsonl") for split in ("train", "test")}
    config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    task = api.ConfigurableTask(config=config)
    task.set_fewshot_seed(1234)
    return task


def contexts(request: dict[str, Any], data: Path) -> dict[str, Any]:
    """Prompts of the first rows; a chat comes as its messages."""
    task = load_task(request["task"], data)
    chat = {"apply_chat_template": True, "chat_template": lambda messages, **_: json.dumps(messages)}
    found = [
        task.fewshot_context(
            doc,
            request["num_fewshot"],
            fewshot_as_multiturn=request["multiturn"],
            **(chat if request["chat"] else {}),
        )
        for doc in list(task.eval_docs)[: request["count"]]
    ]
    return {"prompts": found, "until": task.config.generation_kwargs["until"]}


def scores(request: dict[str, Any], data: Path) -> dict[str, Any]:
    """For every (completion, answer): what each filter extracts and whether it is right."""
    task = load_task(request["task"], data)
    instance = importlib.import_module("lm_eval.api.instance").Instance
    docs = [{"question": "", "answer": answer} for _, answer in request["cases"]]
    instances = []
    for index, (doc, (completion, _)) in enumerate(zip(docs, request["cases"], strict=True)):
        made = instance(request_type="generate_until", doc=doc, arguments=("", {}), idx=index)
        made.doc_id, made.resps = index, [completion]
        instances.append(made)
    for ensemble in task._filters:
        ensemble.apply(instances)
    found = []
    for doc, made in zip(docs, instances, strict=True):
        found.append(
            {
                name: [answer, float(task.process_results(doc, [answer])["exact_match"])]
                for name, answer in made.filtered_resps.items()
            }
        )
    return {"scores": found}


@cache
def load_model(
    folder: str, batch_size: int, dtype: str, device: str, threads: int, *, max_length: int | None = None
) -> Any:
    importlib.import_module("torch").set_num_threads(threads)
    backend = importlib.import_module("lm_eval.models.huggingface").HFLM
    return backend(
        pretrained=folder, device=device, dtype=dtype, batch_size=batch_size, enable_thinking=False,
        max_length=max_length,
    )  # fmt: skip


def remote_model(request: dict[str, Any]) -> Any:
    """A model behind an OpenAI-compatible API: `local-chat-completions` or `local-completions`; or ours."""
    importlib.import_module("lm_eval.models")
    registry = importlib.import_module("lm_eval.api.registry")
    if request["backend"] == "actograph":
        importlib.import_module("actograph.drivers.lm_eval_model")
        return registry.get_model("actograph").create_from_arg_obj(request["model_args"])
    options = {
        "model": request["served"],
        "base_url": request["base_url"],
        "num_concurrent": 8,
        "max_retries": 1,
        "batch_size": request.get("batch_size", 1),
        "max_gen_toks": request["max_tokens"],
        "tokenized_requests": request.get("tokenized", False),
        "tokenizer": request["model"],
    }
    return registry.get_model(request["backend"]).create_from_arg_obj(options)


def evaluate(request: dict[str, Any], data: Path) -> dict[str, Any]:
    """A whole evaluation by the hf backend: greedy, at most `max_tokens`, over the first `limit` rows.

    `data` names another folder of rows, `backend` another backend than hf.
    """
    model = (
        remote_model(request)
        if "backend" in request
        else load_model(
            request["model"], request["batch_size"], request["dtype"], request["device"], request["threads"]
        )
    )
    task = load_task(request["task"], Path(request.get("data", data)))
    task.set_config("num_fewshot", request["num_fewshot"])
    task.set_config("generation_kwargs", {"max_gen_toks": request["max_tokens"]}, update=True)
    evaluator = importlib.import_module("lm_eval.evaluator")
    wall, cpu = time.perf_counter(), time.process_time()
    found = evaluator.evaluate(
        lm=model,
        task_dict={request["task"]: task},
        limit=request["limit"],
        bootstrap_iters=0,
        apply_chat_template=request["chat"],
        fewshot_as_multiturn=request["chat"],
    )
    spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    samples: dict[int, dict[str, Any]] = {}
    for sample in found["samples"][request["task"]]:
        one = samples.setdefault(
            sample["doc_id"],
            {"prompt": sample["arguments"][0][0], "completion": sample["resps"][0][0], "scores": {}},
        )
        one["scores"][sample["filter"]] = [sample["filtered_resps"][0], float(sample["exact_match"])]
    return {"samples": [samples[i] for i in sorted(samples)], **spent}


def likelihoods(request: dict[str, Any], _data: Path) -> dict[str, Any]:
    """A task of choices, a YAML file, over `rows`: each choice's log-likelihood and whether it is greedy."""
    api = importlib.import_module("lm_eval.api.task")
    evaluator = importlib.import_module("lm_eval.evaluator")
    config = yaml.safe_load(Path(request["task"]).read_text())
    config |= {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": request["rows"]}}}
    if "backend" in request:
        model = remote_model(request)
    else:
        model = load_model(request["model"], request["batch_size"], "float32", "cpu", 1)
    name = config["task"]
    found = evaluator.evaluate(
        lm=model, task_dict={name: api.ConfigurableTask(config=config)}, bootstrap_iters=0
    )
    samples = sorted(found["samples"][name], key=lambda sample: int(sample["doc_id"]))
    metrics = {key: value for key, value in found["results"][name].items() if key.endswith(",none")}
    return {
        "samples": [[[float(of), bool(best)] for of, best in s["filtered_resps"]] for s in samples],
        "metrics": metrics,
    }


def windows(request: dict[str, Any], _data: Path) -> dict[str, Any]:
    """Log-likelihoods of whole texts, in windows, and of (context, continuation) pairs."""
    instance = importlib.import_module("lm_eval.api.instance").Instance
    if "backend" in request:
        model = remote_model(request)
    else:
        model = load_model(request["model"], 1, "float32", "cpu", 1, max_length=request["max_length"])

    def made(kind: str, arguments: list[Any]) -> list[Any]:
        return [
            instance(request_type=kind, doc={}, arguments=tuple(one), idx=0, metadata=("texts", place, 1))
            for place, one in enumerate(arguments)
        ]

    rolling = model.loglikelihood_rolling(made("loglikelihood_rolling", [[one] for one in request["texts"]]))
    pairs = model.loglikelihood(made("loglikelihood", request["pairs"]))
    return {"texts": rolling, "pairs": [[of, bool(best)] for of, best in pairs]}


def tracked(request: dict[str, Any], _data: Path) -> dict[str, Any]:
    """The files that lm-eval's tracker writes for these results and samples: name -> text."""
    loggers = importlib.import_module("lm_eval.loggers.evaluation_tracker")
    with tempfile.TemporaryDirectory() as folder:
        tracker = loggers.EvaluationTracker(output_path=folder)
        tracker.general_config_tracker.log_experiment_args(
            model_source=request["model_source"],
            model_args={"pretrained": request["model"]},
            system_instruction=request["system"],
            chat_template=None,
            fewshot_as_multiturn=request["multiturn"],
        )
        tracker.save_results_aggregated(results=request["results"], samples=request["samples"])
        for task, rows in request["samples"].items():
            tracker.save_results_samples(task_name=task, samples=rows)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_text() for path in files}


def loaded(request: dict[str, Any], _data: Path) -> dict[str, Any]:
    """A file of samples, as lm-eval names it and as its users load it."""
    utils = importlib.import_module("lm_eval.utils")
    datasets = importlib.import_module("datasets")
    name = Path(request["path"]).name
    with tempfile.TemporaryDirectory() as cache:
        rows = datasets.load_dataset("json", data_files=request["path"], split="train", cache_dir=cache)
        found = {"rows": len(rows), "columns": rows.column_names}
    return found | {"task": utils.get_file_task_name(name), "date": utils.get_file_datetime(name)}


def verb(request: dict[str, Any], _data: Path) -> dict[str, Any]:
    """`actograph lm-eval` with these arguments, and with the tasks of its `--include_path` alone."""
    manager = importlib.import_module("lm_eval.tasks.manager").TaskManager
    # it takes most of a minute to read the 14,000 files of lm-eval's own tasks
    manager.__init__ = partialmethod(manager.__init__, include_defaults=False)
    with redirect_stdout(io.StringIO()) as out:
        status = importlib.import_module("actograph.cli.main").main(request["arguments"])
    return {"status": status, "out": out.getvalue()}


def main() -> None:
    data, site = Path(sys.argv[1]), sys.argv[2]
    sys.path.append(site)  # behind lm-eval's own packages
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    operations = {
        "contexts": contexts, "scores": scores, "evaluate": evaluate, "likelihoods": likelihoods,
        "windows": windows, "tracked": tracked, "loaded": loaded, "verb": verb,
    }  # fmt: skip
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(operations[request["op"]](request, data)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
