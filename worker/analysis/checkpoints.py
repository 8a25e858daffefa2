"""The checkpoint behind a job's sessions, verified against the identity of the job's model."""

from pathlib import Path

from actograph.analysis.lens.checkpoint import Checkpoint
from actograph.contract.errors import InvalidRequest
from worker.analysis.context import SourceJob
from worker.engine.model import weight_files


def of_job(job: SourceJob) -> Checkpoint:
    """Open the checkpoint that a job's model was loaded from.

    The files must have the digest that the worker recorded when it loaded the model. They are read once per
    process for that; tensors are read later, by name.

    Raises:
        InvalidRequest: no worker has loaded the model, its files are not on this machine, they were
            overwritten, or they are not safetensors.
    """
    if job.identity is None:
        raise InvalidRequest(f"job {job.id} has no model identity: no worker has loaded its model")
    source = job.identity.source
    files = weight_files.find(source, job.identity.revision)
    if not files:
        raise InvalidRequest(
            f"the analysis worker has no weight files of {source!r}; give it the folder or the Hub cache of "
            "the workers"
        )
    digest = weight_files.fingerprint(files)
    if digest != job.identity.weights_sha256:
        raise InvalidRequest(
            f"the files of {source!r} have the digest {digest[:12]}; job {job.id} ran with "
            f"{job.identity.weights_sha256[:12]}"
        )
    return Checkpoint(_folder(files), [path for path in files if path.suffix == ".safetensors"])


def _folder(files: list[Path]) -> Path:
    return next(path for path in files if path.name == "config.json").parent
