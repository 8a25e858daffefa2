"""Datasets as texts: a file to upload, a file of the service, or a dataset of the Hub."""

from pathlib import Path
from typing import Any, get_args

from actograph.contract.errors import InvalidRequest

#: placeholder of an upload while the rest of a spec is checked
_UNSENT_FILE = "file_" + "0" * 32


def reference(typed: str, flag: str) -> tuple[dict[str, Any], Path | None]:
    """Return the dataset of a job spec, and the file to upload first, if any.

    Raises:
        InvalidRequest: the file does not exist, or the reference is invalid.
    """
    scheme, _, rest = typed.partition(":")
    if typed.startswith("file_"):
        return {"file_id": typed}, None
    if scheme == "path" and rest:
        return {"path": rest}, None
    if scheme == "hub" and rest:
        name, config, split, *more = (*rest.split(":"), "", "")
        if more[2:] or not name:
            raise InvalidRequest(f"{flag} {typed!r} is not valid; use hub:OWNER/NAME[:CONFIG[:SPLIT]]")
        found: dict[str, Any] = {"hub": name}
        return found | ({"config": config} if config else {}) | ({"split": split} if split else {}), None
    if not Path(typed).is_file():
        raise InvalidRequest(f"{flag}: no file {typed!r}")
    return {"file_id": _UNSENT_FILE}, Path(typed)


def of_builtin(task: str | None, *, fewshot: bool) -> dict[str, Any]:
    """Return lm-eval's datasets for a built-in task; {} for other tasks."""
    from actograph.contract.tasks import TaskName

    if task not in get_args(TaskName):
        return {}
    gsm8k = {"hub": "openai/gsm8k", "config": "main"}
    datasets: dict[str, Any] = {"dataset": {**gsm8k, "split": "test"}}
    return datasets | ({"fewshot_dataset": {**gsm8k, "split": "train"}} if fewshot else {})
