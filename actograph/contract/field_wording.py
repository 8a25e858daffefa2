"""Sentences about invalid values of fields: the fault, and a valid value."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from actograph.contract.suggestions import did_you_mean

#: pattern of a field -> the values that it allows
FORMS = {
    r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$": "a name of up to 64 letters, digits, _ . or -, no sign first",
    r"^[A-Za-z0-9_.\-]{1,64}$": "a name of up to 64 letters, digits, _ . or -",
    r"^[A-Za-z0-9_\-]{1,64}$": "a name of up to 64 letters, digits, _ or -",
    r"^[A-Za-z_][A-Za-z0-9_.\-]{0,63}$": "a name of up to 64 letters, digits, _ . or -, a letter or _ first",
    r"^[^\x00-\x1f\x7f]+$": "a text without control characters",
    r"^[^\x00]*$": "a text without NUL characters",
    r"^[\x20-\x7e]+$": "printable ASCII characters",
    r"^[\w.\-]+$": "letters, digits, _ . or -",
    r"^job_[0-9a-f]{1,32}$": "the id of a job or its beginning, such as job_3fa2",
    r"^ses_[0-9a-f]{1,32}$": "the id of a session or its beginning, such as ses_3fa2",
    r"^file_[0-9a-f]{1,32}$": "the id of an upload or its beginning, such as file_3fa2",
    r"^\d{0,6}:\d{0,6}(:[1-9]\d{0,5})?$": "a slice of layers, such as 8:20:4",
    r"^prompt(\[(-?\d{1,8}|(-?\d{1,8})?:(-?\d{1,8})?)\])?$": "tokens of the prompt, such as prompt[3:6]",
    r"^[A-Za-z0-9_][\w.\-]*/[A-Za-z0-9_][\w.\-]*$": "OWNER/NAME of a repository on the Hub",
    r"^[1-9][0-9]{0,4}[smhd]$": "a duration, such as 24h",
    r"^[A-Za-z_]\w*(\.\w+)*$": "the path of a module, such as model.layers.3.mlp",
    r"^[\w.\[\]\-]+$": "the name of a hook, such as resid_post.3",
    r"^ses_[0-9a-f]{32}$": "the id of a session",
    r"^[A-Za-z0-9][A-Za-z0-9_.@:\-]{0,63}$": "an owner of up to 64 letters, digits, _ . @ : or -",
    r"^\s*(\d*\.?\d+)\s*(\w+)?": "a size, such as 40GB",
    r"^(auto|balanced|balanced_low_0|sequential|cpu|cuda(:\d{1,3})?)$": "auto, balanced, balanced_low_0, "
    "sequential, cpu, cuda or cuda:1",
    r"^[A-Za-z0-9][\w./\-]*$": "a branch, a tag or a commit",
}
#: kind of error -> the values that the field allows
_TYPES = {
    "list_type": "a list", "dict_type": "an object", "model_type": "an object", "string_type": "a text",
    "int_type": "a whole number", "int_parsing": "a whole number", "float_type": "a number",
    "float_parsing": "a number", "bool_type": "true or false", "bool_parsing": "true or false",
    "model_attributes_type": "an object", "dataclass_type": "an object", "is_instance_of": "an object",
}  # fmt: skip
_UNKNOWN = "unknown field"
_NAMES = ("literal_error", "enum")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'")
_SHOWN = 100


def in_words(errors: Sequence[Mapping[str, Any]]) -> str:
    """One sentence, or a few, about the errors that pydantic has found in one value.

    A union has an error for each of its members: the value may be any of them.
    """
    shapes = [error for error in errors if _alternative(error) is not None]
    others = [_message(error) for error in errors if _alternative(error) is None]
    if unknown := [text for text in others if text.startswith(_UNKNOWN)]:
        return max(unknown, key=len)  # with the nearest field
    if not shapes:
        return " or ".join(dict.fromkeys(others))
    value = shapes[0].get("input")
    names = [name for error in shapes for name in _names(error)]
    if isinstance(value, str) and names:
        hint = did_you_mean(value, names)
        if hint.endswith("?"):
            return f"unknown {value[:_SHOWN]!r}{hint}"
    alternatives = [text for error in shapes if error["type"] not in _NAMES and (text := _alternative(error))]
    if names:
        listed = list(dict.fromkeys(names))
        alternatives.insert(0, listed[0] if len(listed) == 1 else f"one of {', '.join(listed)}")
    sentence = f"Write {' or '.join(dict.fromkeys(alternatives))}"
    is_shown = "input" in shapes[0] and not isinstance(value, dict | list)
    shown = f"{_shown(value)} is not valid. " if is_shown else ""
    return " or ".join([f"{shown}{sentence}", *dict.fromkeys(others)])


def _names(error: Mapping[str, Any]) -> list[str]:
    if error["type"] not in _NAMES:
        return []
    return _QUOTED.findall(str(error.get("ctx", {}).get("expected", "")))


def _alternative(error: Mapping[str, Any]) -> str | None:
    """The values that one member of a union allows; None if the error is about something else."""
    kind = error["type"]
    if kind in _NAMES:
        return ", ".join(_names(error)) or None
    if kind == "string_pattern_mismatch":
        return FORMS.get(error["ctx"]["pattern"], "a text of another form; the reference has it")
    return _TYPES.get(kind)


def _message(error: Mapping[str, Any]) -> str:
    kind = error["type"]
    if kind == "missing":
        return "this field is missing"
    if kind == "extra_forbidden":
        return _UNKNOWN
    if kind == "string_too_short" and error["ctx"]["min_length"] == 1:
        return "the text is empty"
    if kind == "too_long":
        return f"{error['ctx']['actual_length']} entries; at most {error['ctx']['max_length']} are allowed"
    message: str = error["msg"].removeprefix("Value error, ")
    return message


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value[:_SHOWN]!r}" if isinstance(value, str) else str(value)[:_SHOWN]
