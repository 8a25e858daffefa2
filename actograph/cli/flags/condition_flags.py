"""Conditions of an evaluation, from `--condition` and `--conditions`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from actograph.contract.errors import InvalidRequest

_TEXTS = ("system", "prefix", "suffix", "tools")
_NUMBERS = {"temperature": float, "top_p": float, "top_k": int}
_FORMS = 'NAME, NAME:suffix=TEXT, or JSON such as {"name": "calm", "prefix": "..."}'
BASELINE = "baseline"


def conditions_of(given: Sequence[str], file: Path | None) -> list[dict[str, Any]] | None:
    """Return the conditions of `--condition`, then those of `--conditions`; None if there are none.

    A `--condition` is `NAME`, `NAME:FIELD=VALUE`, or a JSON object. FIELD is system, prefix, suffix, tools,
    temperature, top_p or top_k; VALUE is everything after the first `=`. Repeating a name adds a field.

    The file is JSON: a list of condition objects, `{"conditions": [...]}`, or `{"stimuli": {NAME: SUFFIX}}`.
    Without a `--condition`, a plain `baseline` precedes the stimuli.

    Raises:
        InvalidRequest: a condition is invalid, or repeats a field.
    """
    if not given and file is None:
        return None
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        _add(found, _parse(text), f"--condition {text}")
    if file is not None:
        for condition in _read(file, needs_baseline=not given):
            if condition["name"] in found:
                raise InvalidRequest(f"{file}: condition {condition['name']!r} occurs twice; rename one")
            found[condition["name"]] = condition
    return list(found.values())


def _parse(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            return _condition(json.loads(text), "--condition")
        except ValueError as error:
            raise InvalidRequest(f"--condition is not valid JSON: {error}") from error
    name, colon, rest = text.partition(":")
    field, equals, value = rest.partition("=")
    if not name or (colon and not equals):
        raise InvalidRequest(f"--condition {text!r} is not valid; use {_FORMS}")
    if not colon:
        return {"name": name}
    if field in _TEXTS:
        return {"name": name, field: value}
    if field not in _NUMBERS:
        known = ", ".join([*_TEXTS, *_NUMBERS])
        raise InvalidRequest(f"--condition {text}: unknown field {field!r}; use one of {known}")
    try:
        return {"name": name, "sampling": {field: _NUMBERS[field](value)}}
    except ValueError:
        raise InvalidRequest(f"--condition {text}: {value!r} is not a number") from None


def _add(found: dict[str, dict[str, Any]], condition: dict[str, Any], source: str) -> None:
    """Add a condition, or add fields to an earlier one of the same name."""
    name = condition.pop("name")
    if name not in found:
        found[name] = {"name": name, **condition}
        return
    known = found[name]
    if not condition:
        raise InvalidRequest(f"{source}: condition {name!r} occurs twice; rename one")
    sampling = condition.pop("sampling", None)
    _merge(known, condition, source)
    if sampling:
        _merge(known.setdefault("sampling", {}), sampling, source)


def _merge(known: dict[str, Any], new: Mapping[str, Any], source: str) -> None:
    for field, value in new.items():
        if field in known:
            raise InvalidRequest(f"{source}: {field} occurs twice")
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
            f'{file} is not a list of conditions; use [{{"name": ...}}, ...], {{"conditions": [...]}} or '
            '{"stimuli": {NAME: SUFFIX}}'
        )
    for condition in listed:
        yield _condition(condition, str(file))


def _condition(value: Any, source: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise InvalidRequest(f"{source}: a condition must be an object with a name")
    return value
