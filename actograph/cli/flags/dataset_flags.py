"""Datasets as command lines name them: a file to upload, one that the service has, or one of the Hub."""

from pathlib import Path
from typing import Any, get_args

from actograph.contract.errors import InvalidRequest

#: stands in for an upload while the rest of a spec is checked
_UNSENT_FILE = "file_" + "0" * 32
HELP = (
    "File to upload (JSONL, CSV or Parquet), file_... that was uploaded, path:... under a data root of the "
    "service, or hub:OWNER/NAME[:CONFIG[:SPLIT]]."
)
METAVAR = "FILE|REF"


def reference(typed: str, flag: str) -> tuple[dict[str, Any], Path | None]:
    """The dataset as a job names it, and the file to upload first, if any.

    Raises:
        InvalidRequest: a file that is not there, or a reference that cannot be read.
    """
    scheme, _, rest = typed.partition(":")
    if typed.startswith("file_"):
        return {"file_id": typed}, None
    if scheme == "path" and rest:
        return {"path": rest}, None
    if scheme == "hub" and rest:
        name, config, split, *more = (*rest.split(":"), "", "")
        if more[2:] or not name:
            raise InvalidRequest(f"{flag} {typed}: say hub:OWNER/NAME[:CONFIG[:SPLIT]]")
        found: dict[str, Any] = {"hub": name}
        return found | ({"config": config} if config else {}) | ({"split": split} if split else {}), None
    if not Path(typed).is_file():
        raise InvalidRequest(f"{flag} {typed}: there is no such file")
    return {"file_id": _UNSENT_FILE}, Path(typed)


def of_builtin(task: str | None, *, fewshot: bool) -> dict[str, Any]:
    """lm-eval's dataset for a built-in task; {} for other tasks."""
    from actograph.contract.tasks import TaskName

    if task not in get_args(TaskName):
        return {}
    gsm8k = {"hub": "openai/gsm8k", "config": "main"}
    datasets: dict[str, Any] = {"dataset": {**gsm8k, "split": "test"}}
    return datasets | ({"fewshot_dataset": {**gsm8k, "split": "train"}} if fewshot else {})
