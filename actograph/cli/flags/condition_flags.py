"""Conditions of an evaluation as command lines name them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from actograph.contract.errors import InvalidRequest

_TEXTS = ("system", "prefix", "suffix", "mode")
_NUMBERS = {"temperature": float, "top_p": float, "top_k": int}
_FORMS = 'NAME, NAME:suffix=TEXT, or JSON such as {"name": "calm", "prefix": "..."}'
BASELINE = "baseline"


def conditions_of(given: Sequence[str], file: Path | None) -> list[dict[str, Any]] | None:
    """The conditions of `--condition` and then those of `--conditions`; None where there are none.

    A `--condition` is `NAME`, `NAME:FIELD=VALUE` with everything after the first = as the value (of
    system, prefix, suffix, mode, temperature, top_p or top_k), or a JSON object. The same name again
    adds a field. The file is JSON: a list of condition objects, `{"conditions": [...]}`, or `{"stimuli":
    {NAME: SUFFIX}}`, before which comes a plain `baseline` where no `--condition` says otherwise.

    Raises:
        InvalidRequest: one cannot be read, or has a field twice.
    """
    if not given and file is None:
        return None
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        _add(found, _parse(text), f"--condition {text}")
    if file is not None:
        for condition in _read(file, needs_baseline=not given):
            if condition["name"] in found:
                raise InvalidRequest(f"{file}: condition {condition['name']} is there twice")
            found[condition["name"]] = condition
    return list(found.values())


def _parse(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            return _condition(json.loads(text), "--condition")
        except ValueError as error:
            raise InvalidRequest(f"--condition: not JSON: {error}") from error
    name, colon, rest = text.partition(":")
    field, equals, value = rest.partition("=")
    if not name or (colon and not equals):
        raise InvalidRequest(f"--condition {text}: say {_FORMS}")
    if not colon:
        return {"name": name}
    if field in _TEXTS:
        return {"name": name, field: value}
    if field not in _NUMBERS:
        known = ", ".join([*_TEXTS, *_NUMBERS])
        raise InvalidRequest(f"--condition {text}: no field {field!r}; there are {known}")
    try:
        return {"name": name, "sampling": {field: _NUMBERS[field](value)}}
    except ValueError:
        raise InvalidRequest(f"--condition {text}: {value!r} is no number") from None


def _add(found: dict[str, dict[str, Any]], condition: dict[str, Any], said: str) -> None:
    """A new condition, or more fields of one that was named before."""
    name = condition.pop("name")
    if name not in found:
        found[name] = {"name": name, **condition}
        return
    known = found[name]
    if not condition:
        raise InvalidRequest(f"{said}: condition {name} is there twice")
    sampling = condition.pop("sampling", None)
    _merge(known, condition, said)
    if sampling:
        _merge(known.setdefault("sampling", {}), sampling, said)


def _merge(known: dict[str, Any], new: Mapping[str, Any], said: str) -> None:
    for field, value in new.items():
        if field in known:
            raise InvalidRequest(f"{said}: {field} is given twice")
        known[field] = value


def _read(file: Path, *, needs_baseline: bool) -> Iterator[dict[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidRequest(f"{file} is not JSON: {error}") from error
    stimuli = content.get("stimuli") if isinstance(content, dict) else None
    if isinstance(stimuli, dict):
        if needs_baseline and BASELINE not in stimuli:
            yield {"name": BASELINE}
        for name, suffix in stimuli.items():
            yield {"name": name, "suffix": suffix}
        return
    listed = content.get("conditions") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise InvalidRequest(
            f'{file}: say [{{"name": ...}}, ...], {{"conditions": [...]}} or {{"stimuli": {{NAME: SUFFIX}}}}'
        )
    for condition in listed:
        yield _condition(condition, str(file))


def _condition(value: Any, said: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise InvalidRequest(f"{said}: a condition is an object with a name")
    return value
