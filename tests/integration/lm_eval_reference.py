"""Runs under lm-eval's own Python (`.venv-lm-eval`): what lm-eval does with its GSM8K tasks.

Reads one JSON object from standard input and writes one to standard output. It is started by the
fixture `lm_eval`; no test imports it.
"""

import importlib
import json
import sys
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


if __name__ == "__main__":
    wanted = json.loads(sys.stdin.read())
    answers = [
        {"contexts": contexts, "scores": scores}[request["op"]](request, Path(sys.argv[1]))
        for request in wanted
    ]
    sys.stdout.write(json.dumps(answers))
