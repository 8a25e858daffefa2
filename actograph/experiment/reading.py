"""Read an experiment file; errors name the line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import ANALYSIS_KINDS, JOB_KINDS
from actograph.experiment.spec import Experiment, analysed, check_analysis, check_job, job_bodies

MAX_BYTES = 1 << 20


class ExperimentInvalid(InvalidRequest):
    """The experiment file is not valid."""

    code = "experiment_invalid"


def read(path: Path) -> Experiment:
    """Read and check an experiment file with all its jobs.

    Raises:
        ExperimentInvalid: the message has `file:line: field: reason`, for each fault.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ExperimentInvalid(f"cannot read {path}: {reason}") from error
    if len(text) > MAX_BYTES:
        raise ExperimentInvalid(f"{path} has more than {MAX_BYTES} characters")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _refuse_doubles(path, root, set())
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ExperimentInvalid(f"{path}:{line}: {error.problem or 'this is not YAML'}") from error
    except yaml.YAMLError as error:
        raise ExperimentInvalid(f"{path}: this is not YAML: {error}") from error
    if not isinstance(value, dict):
        raise ExperimentInvalid(f"{path}:1: an experiment is a mapping with a name and stages")
    try:
        experiment = Experiment.model_validate(value)
    except ValidationError as error:
        raise ExperimentInvalid("; ".join(_faults(path, root, error, [()]))) from error
    faults = [*_job_faults(path, root, experiment), *_analysis_faults(path, root, experiment)]
    if faults:
        raise ExperimentInvalid("; ".join(faults))
    return experiment


def _analysis_faults(path: Path, root: Any, experiment: Experiment) -> list[str]:
    faults: list[str] = []
    for name, job in experiment.analyse.jobs.items() if experiment.analyse is not None else ():
        place = ("analyse", "jobs", name)
        try:
            check_analysis(job, len(analysed(experiment, job)))
        except ValidationError as error:
            faults += [f"{one} (analysis {name})" for one in _faults(path, root, error, [place])]
        except InvalidRequest as error:
            faults.append(f"{path}:{_line(root, [place], ('of',))}: of: {error.message} (analysis {name})")
    return faults


def _job_faults(path: Path, root: Any, experiment: Experiment) -> list[str]:
    faults: list[str] = []
    if experiment.evaluate is None:
        return faults
    for name, body in job_bodies(experiment.evaluate).items():
        origin = next(job for job in experiment.evaluate.jobs if name == job or name.startswith(f"{job}."))
        places = [("evaluate", "jobs", origin), ("evaluate", "base"), ("evaluate", "sweep")]
        try:
            check_job(body)
        except ValidationError as error:
            faults += [f"{one} (job {name})" for one in _faults(path, root, error, places)]
        for field in ("dataset", "fewshot_dataset"):
            file = body.get(field)
            if isinstance(file, str) and not (path.parent / file).is_file():
                line = _line(root, places, (field,))
                faults.append(f"{path}:{line}: {field}: no file {file!r} beside the experiment (job {name})")
    return faults


def _faults(path: Path, root: Any, error: ValidationError, places: Sequence[tuple[Any, ...]]) -> list[str]:
    """One line per fault."""
    lines = []
    for fault in error.errors(include_url=False, include_input=False):
        location = tuple(fault["loc"])
        if location and location[0] in (
            *JOB_KINDS,
            *ANALYSIS_KINDS,
        ):  # the discriminator, which is not in the file
            location = location[1:]
        field = ".".join(str(part) for part in location) or "experiment"
        lines.append(f"{path}:{_line(root, places, location)}: {field}: {fault['msg']}")
    return lines


def _line(root: Any, places: Sequence[tuple[Any, ...]], location: tuple[Any, ...]) -> int:
    """Line of the deepest node of a location, below the first place that has it."""
    best = (-1, 1)
    for place in places:
        depth, line = _deepest(root, place, location)
        best = max(best, (depth, line), key=lambda one: one[0])
    return best[1]


def _deepest(root: Any, place: tuple[Any, ...], location: tuple[Any, ...]) -> tuple[int, int]:
    """Number of matched parts of `location` below `place`, and the line; -1 without the place."""
    node, line = root, 1
    for part in place:
        child = _child(node, part)
        if child is None:
            return -1, line
        node, line = child
    depth = 0
    dotted = ".".join(map(str, location))  # a key of a sweep
    if (child := _child(node, dotted)) is not None and location:
        return len(location), child[1]
    for part in location:
        if (child := _child(node, part)) is None:
            continue  # names of kinds, which are not in the file
        node, line = child
        depth += 1
    return depth, line


def _child(node: Any, part: Any) -> tuple[Any, int] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return value, key.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    return None


def _refuse_doubles(path: Path, node: Any, seen: set[int]) -> None:
    """Raises ExperimentInvalid if a mapping has a key twice."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise ExperimentInvalid(f"{path}:{key.start_mark.line + 1}: {key.value} is there twice")
            if isinstance(key, yaml.ScalarNode):
                keys.add(key.value)
            _refuse_doubles(path, value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_doubles(path, value, seen)
