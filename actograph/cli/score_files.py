"""CSV files of scores: a line per session, or per sample of a job, and a column per score."""

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import Session

#: columns that name a sample of a job; others than the first may be left out
_SAMPLE = ("sample_index", "condition", "epoch")
_VERDICTS = {"true": True, "1": True, "false": False, "0": False}


def read_scores(file: Path, of_job: Iterable[Session] | None) -> list[dict[str, Any]]:
    """The scores of each session, as `client.sessions.score` takes them.

    Args:
        of_job: sessions of the job that the file is about; None if the file names sessions.

    Raises:
        InvalidRequest: the file has no column that names sessions, no score, or a value that is no number.
    """
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream, strict=True)
        try:
            lines = [(reader.line_num, line) for line in reader]
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{file} is not a CSV file in UTF-8: {error}") from None
        names = [name for name in reader.fieldnames or [] if name]
    keys = ("session_id",) if of_job is None else _SAMPLE
    if keys[0] not in names:
        advice = "add it, or name samples of a job by --job and sample_index" if of_job is None else "add it"
        raise InvalidRequest(f"{file} has no column {keys[0]}; {advice}")
    scores = [name for name in names if name not in (*keys, "session_id", "correct")]
    if not scores and "correct" not in names:
        raise InvalidRequest(f"{file} has no column of scores beside {', '.join(names)}")
    sessions = None if of_job is None else list(of_job)
    found: dict[str, dict[str, Any]] = {}
    for number, line in lines:
        where = f"{file}, line {number}"
        if None in line or None in line.values():
            raise InvalidRequest(f"{where} has not the {len(names)} values that the first line names")
        given: dict[str, Any] = {
            "scores": {name: _number(line, name, where) for name in scores if line[name]}
        }
        if line.get("correct"):
            given["correct"] = _verdict(line["correct"], where)
        ids = [line["session_id"]] if sessions is None else _matching(sessions, line, where)
        if twice := [one for one in ids if one in found]:
            raise InvalidRequest(f"{where} is about session {twice[0]}, as a line before is")
        found |= {one: {"session_id": one, **given} for one in ids}
    return list(found.values())


def _matching(sessions: Iterable[Session], line: Mapping[str, str], where: str) -> list[str]:
    wanted = {name: line[name] for name in _SAMPLE if name in line}
    ids = [
        one.id
        for one in sessions
        if all(
            str(getattr(one, name) or ("" if name == "condition" else 0)) == wanted[name] for name in wanted
        )
    ]
    if not ids:
        asked = ", ".join(f"{name} {value}" for name, value in wanted.items())
        raise InvalidRequest(f"{where}: the job has no session with {asked}")
    return ids


def _shown(session: Session, name: str) -> str:
    value = getattr(session, name)
    return "" if value is None else str(value)


def _number(line: Mapping[str, str], name: str, where: str) -> float:
    try:
        number = float(line[name])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequest(f"{where}: {name} is {line[name]!r}; scores are numbers")
    return number


def _verdict(text: str, where: str) -> bool:
    if (verdict := _VERDICTS.get(text.strip().lower())) is None:
        raise InvalidRequest(f"{where}: correct is {text!r}; write true or false")
    return verdict
