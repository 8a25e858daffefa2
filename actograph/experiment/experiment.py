"""The experiment file: its stages, the jobs that it describes, and what is wrong with it, by line."""

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from actograph.contract.base import Name, Spec, canonical_digest, fault_of, merged
from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import field_errors, job_spec_adapter
from actograph.contract.model_loads import ModelLoadRequest

STAGES = ("deploy", "model", "evaluate", "analyse", "fetch", "report")
#: fields of a job that may name a file beside the experiment
FILE_FIELDS = ("dataset", "fewshot_dataset")
#: fields of an analysis that choose sessions
QUERY_FIELDS = ("sessions", "other")
_UNSENT_FILE = {"file_id": "file_" + "0" * 32}

#: characters of a job's name, which is a folder's name too, of a swept value in it, and of a digest
MOST_NAME, MOST_VALUE_NAME, DIGEST = 200, 40, 8
#: words that stand for themselves in names; no number looks like one
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
_NOT_WORDS = frozenset({"true", "false", "null", "NaN", "Infinity"})

Fields = dict[str, Any]
#: keys and numbers that lead to a value
Place = tuple[Any, ...]


class DeployStage(Spec):
    """Puts the service on a box, as `actograph deploy` does. Without it the service is that of the client."""

    target: str = Field(description="user@host[:port], or a host of ~/.ssh/config.")
    mode: Literal["reuse", "fresh", "frozen"] = Field("reuse", description="Flag of `actograph deploy`.")
    model: str | None = Field(None, description="Hub id, or folder on the box; null: as deployed last.")
    options: str | None = Field(None, description="More options of `actograph up`, but no functions.")
    python: str | None = Field(None, description="Python on the box whose packages are used as they are.")
    folder: str | None = Field(None, description="Folder on the box.")

    @model_validator(mode="before")
    @classmethod
    def _names_no_commands(cls, value: Any) -> Any:
        """Refuse what runs here or leaves this machine: a file may be someone else's."""
        for name in ("ssh", "env"):
            if isinstance(value, dict) and name in value:
                raise fault_of(name, f"a file names no commands or variables; use `actograph run --{name}`")
        return value

    @field_validator("options")
    @classmethod
    def _names_no_functions(cls, options: str | None) -> str | None:
        for word in shlex.split(options or ""):
            if word.startswith("--user-"):
                raise ValueError(f"a file names no functions; use `actograph deploy --options '{word} ...'`")
        return options


class Evaluate(Spec):
    """Jobs: `base`, changed by each of `jobs`, once for every combination of `sweep`."""

    base: Fields = Field({}, description="Fields of all jobs. `dataset` may be a file beside the experiment.")
    jobs: dict[Name, Fields | None] = Field(
        {"main": None},
        min_length=1,
        max_length=1000,
        description="Name -> fields that replace those of base.",
    )
    sweep: dict[str, list[Any]] = Field({}, description="Field, with dots for nested ones -> values.")

    @field_validator("sweep")
    @classmethod
    def _has_values(cls, sweep: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for field, values in sweep.items():
            if not values:
                raise ValueError(f"{field}: give at least one value")
        return sweep

    def variants(self) -> dict[str, dict[str, Fields]]:
        """Entry of `jobs` -> full name -> body of each of its jobs. With a sweep, the name has the values.

        Raises:
            InvalidRequest: two jobs have the same name.
        """
        found: dict[str, dict[str, Fields]] = {}
        known: set[str] = set()
        for name, changes in self.jobs.items():
            found[name] = {}
            for values in itertools.product(*self.sweep.values()):
                swept = dict(zip(self.sweep, values, strict=True))
                parts = [f"{field.rpartition('.')[2]}-{_value_name(value)}" for field, value in swept.items()]
                full = _cut(".".join([name, *parts]), MOST_NAME)
                if full in known:
                    raise InvalidRequest(f"two jobs have the name {full}; has the sweep a value twice?")
                known.add(full)
                found[name][full] = merged(merged({"kind": "evaluation"} | self.base, changes or {}), swept)
        return found


class Analyse(Spec):
    """Analyses of what the jobs stored. They need an analysis worker."""

    jobs: dict[Name, Fields] = Field(
        min_length=1,
        max_length=100,
        description="Name -> fields of an analysis. Its `sessions.jobs` name jobs above; default: all.",
    )


class Fetch(Spec):
    """Downloads the results of all jobs."""

    activations: Literal["none", "meta", "sampled", "all"] = Field(
        "meta", description="meta: shapes and sizes; sampled: 50 features of each row; all: every file."
    )


class ReportStage(Spec):
    """One HTML page about all jobs and analyses."""

    title: str | None = Field(None, max_length=200, description="null: the experiment's name.")


class Experiment(Spec):
    """One experiment. A stage that is missing is not run."""

    name: Name = Field(description="Name of the experiment and of its run folder.")
    deploy: DeployStage | None = Field(None, description="Box of the service.")
    model: ModelLoadRequest | None = Field(None, description="Model to load first.")
    evaluate: Evaluate | None = Field(None, description="Jobs to run.")
    analyse: Analyse | None = Field(None, description="Analyses to run.")
    fetch: Fetch | None = Field(None, description="Results to download.")
    report: ReportStage | None = Field(None, description="Page to write.")

    @property
    def stages(self) -> list[str]:
        """Stages that the file has, in their order."""
        return [name for name in STAGES if getattr(self, name) is not None]

    @cached_property
    def variants(self) -> dict[str, dict[str, Fields]]:
        """Entry of `evaluate.jobs` -> full name -> body of each of its jobs. Raises InvalidRequest."""
        found = {} if self.evaluate is None else self.evaluate.variants()
        return {name: self._tagged(bodies) for name, bodies in found.items()}

    @property
    def bodies(self) -> dict[str, Fields]:
        """Full name -> body of every job, with its tag. Raises InvalidRequest."""
        return {name: body for bodies in self.variants.values() for name, body in bodies.items()}

    @property
    def analyses(self) -> dict[str, Fields]:
        """Name -> body of every analysis, with names in place of the ids of jobs. Raises InvalidRequest."""
        found = {} if self.analyse is None else self.analyse.jobs
        if both := found.keys() & (self.bodies | self.variants).keys():
            raise InvalidRequest(f"{min(both)} is the name of a job too; give the analysis another one")
        return self._tagged({name: self._with_jobs(body) for name, body in found.items()})

    def _tagged(self, bodies: Mapping[str, Fields]) -> dict[str, Fields]:
        return {name: body | {"tags": [*body.get("tags", ()), self.name]} for name, body in bodies.items()}

    def _with_jobs(self, body: Fields) -> Fields:
        """An analysis with the full names of the jobs that it reads; a name stands for all its values."""
        made, known = dict(body), list(self.bodies)
        for field in QUERY_FIELDS:
            query = body.get(field, {} if field == "sessions" else None)
            if not isinstance(query, dict):
                continue
            names: dict[str, None] = {}
            for wanted in query.get("jobs", known):
                same = list(self.variants.get(wanted, [wanted] if wanted in known else []))
                if not same:
                    raise InvalidRequest(
                        f"there is no job {wanted!r}; there are {', '.join(known) or 'none'}"
                    )
                names.update(dict.fromkeys(same))
            made[field] = query | {"jobs": list(names)}
        return made


def schema() -> dict[str, Any]:
    """JSON schema of experiment files, for editors. Fields of jobs are those of their spec, all optional."""
    found = Experiment.model_json_schema()
    jobs = job_spec_adapter.json_schema()
    found["$defs"] |= jobs.pop("$defs")
    kinds = [found["$defs"][option["$ref"].rpartition("/")[2]] for option in jobs["oneOf"]]
    fields: Fields = {}
    for kind in kinds:
        for name, field in kind["properties"].items():
            fields.setdefault(name, {"anyOf": []})["anyOf"].append(field)
    for name in FILE_FIELDS:
        fields[name]["anyOf"].append({"type": "string", "description": "File beside the experiment."})
    found["$defs"]["JobFields"] = {"type": "object", "properties": fields, "additionalProperties": False}
    stage = found["$defs"]["Evaluate"]["properties"]
    stage["base"] |= {"$ref": "#/$defs/JobFields"}
    stage["jobs"]["additionalProperties"] = {"anyOf": [{"$ref": "#/$defs/JobFields"}, {"type": "null"}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def read(path: Path) -> Experiment:
    """Read and check an experiment file with all its jobs.

    Raises:
        InvalidRequest: it is not valid; the message has `file:line: field: reason` for each fault.
        OSError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path}: it is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidRequest(f"{path}:{line}: {error.problem or 'this is not YAML'}") from None
    if root is None or not isinstance(value, dict):
        raise InvalidRequest(f"{path}:1: an experiment is a mapping with a name and stages")
    faults = [f"{line}: {key} is there twice" for key, line in _doubles(root)]
    if not faults:
        try:
            experiment = Experiment.model_validate(value)
        except ValidationError as error:
            faults = _faults(root, error, [()], value)
        else:
            faults = _faults_of_jobs(root, experiment, path.parent) or _faults_of_analyses(root, experiment)
    if faults:
        raise InvalidRequest("; ".join(f"{path}:{fault}" for fault in faults))
    return experiment


def _faults_of_jobs(root: yaml.Node, experiment: Experiment, folder: Path) -> list[str]:
    faults: list[str] = []
    try:
        bodies = experiment.bodies
    except InvalidRequest as error:
        return [f"{_line(root, [()], ('evaluate',))}: {error.message}"]
    entries = {name: entry for entry, variants in experiment.variants.items() for name in variants}
    for name, body in bodies.items():
        places: list[Place] = [
            ("evaluate", "jobs", entries[name]), ("evaluate", "base"), ("evaluate", "sweep")
        ]  # fmt: skip
        files = files_of(body, folder)
        sent = {"model": "any"} | body | dict.fromkeys(files, _UNSENT_FILE)
        try:
            job_spec_adapter.validate_python(sent)
        except ValidationError as error:
            faults += [f"{fault} (job {name})" for fault in _faults(root, error, places, sent)]
        for field, file in files.items():
            if not file.is_file():
                faults.append(
                    f"{_line(root, places, (field,))}: {field}: there is no file {file} (job {name})"
                )
    return faults


def _faults_of_analyses(root: yaml.Node, experiment: Experiment) -> list[str]:
    faults: list[str] = []
    try:
        analyses = experiment.analyses
    except InvalidRequest as error:
        return [f"{_line(root, [()], ('analyse', 'jobs'))}: {error.message}"]
    for name, body in analyses.items():
        models = {
            experiment.bodies[job].get("model")
            for field in QUERY_FIELDS
            for job in (body.get(field) or {}).get("jobs", ())
        }
        if len(models) > 1:
            faults.append(
                f"{_line(root, [()], ('analyse', 'jobs', name))}: analysis {name} reads jobs of different "
                f"models ({', '.join(sorted(map(str, models)))}); name the jobs of one"
            )
        ids = dict.fromkeys(experiment.bodies, "job_" + "0" * 32)
        sent = with_ids(body, ids)
        try:
            job_spec_adapter.validate_python(sent)
        except ValidationError as error:
            found = _faults(root, error, [("analyse", "jobs", name)], sent)
            faults += [f"{fault} (analysis {name})" for fault in found]
    return faults


def with_ids(body: Mapping[str, Any], ids: Mapping[str, str]) -> Fields:
    """An analysis with the ids of jobs in place of their names."""
    queries = {field: body[field] for field in QUERY_FIELDS if isinstance(body.get(field), dict)}
    return dict(body) | {
        field: query | {"jobs": [ids[name] for name in query["jobs"]]} for field, query in queries.items()
    }


def files_of(body: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """The local files that a job's fields name, by field; other datasets are the service's or the Hub's."""
    return {field: folder / body[field] for field in FILE_FIELDS if isinstance(body.get(field), str)}


def _value_name(value: Any) -> str:
    """A value of a sweep as a part of a name; different values have different names.

    Numbers and plain words stand for themselves, as `0_7` and `calculator`. Others have a digest behind them.
    """
    if isinstance(value, bool | int | float):
        return re.sub(r"[^A-Za-z0-9_-]", "_", json.dumps(value))
    if isinstance(value, str) and _WORD.fullmatch(value) and value not in _NOT_WORDS:
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:MOST_VALUE_NAME]
    return f"{plain}-{canonical_digest(value)[:DIGEST]}"


def _cut(name: str, most: int) -> str:
    """A name of at most this length; a longer one ends in a digest of all of it."""
    return name if len(name) <= most else f"{name[: most - DIGEST - 1]}-{canonical_digest(name)[:DIGEST]}"


def _faults(root: yaml.Node, error: ValidationError, places: Sequence[Place], sent: Fields) -> list[str]:
    found = field_errors(error.errors(include_url=False), sent)
    return [f"{_line(root, places, one.path)}: {one}" for one in found]


def _line(root: yaml.Node, places: Sequence[Place], location: Place) -> int:
    """Line of the deepest node of a location, below the first of the places that has most of it."""
    return max((_deepest(root, place, location) for place in places), key=lambda found: found[0])[1]


def _deepest(root: yaml.Node, place: Place, location: Place) -> tuple[int, int]:
    """How many parts of a location are there below a place, and the line of the last one."""
    node, line, depth = root, 1, -len(place)
    for part in (*place, *location):
        child = next((value for key, value in _children(node) if key.value == str(part)), None)
        if child is None:
            break
        node, line, depth = child, _line_of(node, child), depth + 1
    swept = ".".join(map(str, location))
    if place == ("evaluate", "sweep"):
        for key, _ in _children(node):
            if key.value == swept:
                return len(location), int(key.start_mark.line) + 1
    return depth, line


def _children(node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """Keys and values of a mapping; of a sequence, its numbers as keys."""
    if isinstance(node, yaml.MappingNode):
        yield from ((key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield yaml.ScalarNode("number", str(number), value.start_mark), value


def _line_of(node: yaml.Node, child: yaml.Node) -> int:
    """The line of a value's key, or of an entry of a sequence."""
    return next(int(key.start_mark.line) + 1 for key, value in _children(node) if value is child)


def _doubles(node: yaml.Node) -> Iterator[tuple[str, int]]:
    """Keys that a mapping has twice, of which YAML takes the last without a word."""
    seen: set[str] = set()
    for key, value in _children(node):
        if key.value in seen:
            yield key.value, int(key.start_mark.line) + 1
        seen.add(key.value)
        yield from _doubles(value)
