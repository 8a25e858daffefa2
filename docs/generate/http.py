"""The pages of routes, job specs and JSON objects, from the OpenAPI document."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from api.app import create_app
from docs.generate.markdown import anchor, cell, code, escape, heading, table

METHODS = ("get", "post", "put", "patch", "delete")
SPECS = ("EvaluationSpec", "CaptureJobSpec", "ReplaySpec", "PatchSpec")
ROUTES_INTRODUCTION = """\
Every route of the service. `GET /openapi.json` is the OpenAPI document, with examples, and `GET /docs`
shows it in the browser. The role is the least [role of the API key](../operate/storage.md#roles). All
routes can answer with an [error](errors.md)."""
SPEC_INTRODUCTION = """\
`POST /v1/jobs` takes one of the first four objects below; its `kind` says which. Unknown fields are refused.
[Jobs](../guides/jobs.md) is the guide."""
OBJECTS_INTRODUCTION = "Every other JSON object of the HTTP interface, by name."


def document() -> dict[str, Any]:
    """The OpenAPI document of the service."""
    return create_app().openapi()


def schemas(of: Mapping[str, Any]) -> dict[str, Any]:
    """Schemas by name."""
    return dict(of["components"]["schemas"])


def references(value: Any) -> Iterator[str]:
    """Names of the schemas that a piece of the document refers to."""
    if isinstance(value, Mapping):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for key, part in value.items():
            if key not in ("example", "examples"):
                yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def spec_names(of: Mapping[str, Any]) -> list[str]:
    """Schemas that a job spec is made of, the two kinds first."""
    known, names = schemas(of), list(SPECS)
    for name in names:
        names += dict.fromkeys(other for other in references(known[name]) if other not in names)
    return [*SPECS, *sorted(names[len(SPECS) :])]


def plain(name: str) -> str:
    """The name of a schema without the module path that tells two of one name apart."""
    return name.rpartition("__")[2]


def linked(name: str, specs: list[str]) -> str:
    """A link to the section of a schema."""
    if name == "JobSpec":
        return "[JobSpec](job-spec.md)"
    page = "job-spec.md" if name in specs else "objects.md"
    return f"[{plain(name)}]({page}#{anchor(name)})"


def kind_of(schema: Mapping[str, Any], specs: list[str]) -> str:
    """The type of a value in a few words."""
    if "$ref" in schema:
        return linked(schema["$ref"].rpartition("/")[2], specs)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(kind_of(part, specs) for part in schema[key]))
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        items = schema.get("items")
        return f"list of {kind_of(items, specs)}" if items else "list"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"object of {kind_of(inner, specs)}" if isinstance(inner, Mapping) and inner else "object"
    return str(kind)


def bounds(schema: Mapping[str, Any]) -> str:
    """Limits of a number or a list, as a sentence."""
    parts = [schema, *schema.get("anyOf", [])]
    for part in parts:
        low, high = part.get("minimum", part.get("exclusiveMinimum")), part.get("maximum")
        first = "" if low is None else f"{low:,.12g}"
        if first and high is not None:
            last = f"{high:,.12g}"
            return (
                f" From {first} to {last}." if "minimum" in part else f" More than {first}, at most {last}."
            )
        if first:
            return f" At least {first}." if "minimum" in part else f" Greater than {first}."
    return ""


def fields_table(schema: Mapping[str, Any], specs: list[str]) -> str:
    """Fields of an object, one per row, required ones first."""
    required = schema.get("required", [])
    rows = []
    fields = schema.get("properties", {})
    for name, field in sorted(fields.items(), key=lambda item: item[0] not in required):
        default = json.dumps(field["default"]) if "default" in field else ""
        if not default and name in required:
            default = "required"
        rows.append(
            (
                code(name),
                kind_of(field, specs),
                default if default == "required" else code(default),
                cell(field.get("description", "") + bounds(field)),
            )
        )
    return table(("field", "type", "default", "meaning"), rows)


def schema_section(name: str, schema: Mapping[str, Any], specs: list[str]) -> str:
    """One schema: description and fields."""
    text = f"## {name}\n\n" + escape(schema.get("description", "").strip()) + "\n\n"
    return text + (fields_table(schema, specs) or f"{kind_of(schema, specs)}\n\n")


def body_of(content: Mapping[str, Any], specs: list[str]) -> str:
    """The content of a request or an answer in a few words."""
    kinds = []
    for media, value in content.items():
        schema = value.get("schema", {})
        named = kind_of(schema, specs) if references_any(schema) else code(media)
        kinds.append(named)
    return " or ".join(dict.fromkeys(kinds))


def references_any(schema: Any) -> bool:
    """True if a schema is, or holds, a named one."""
    return next(references(schema), None) is not None


def role_of(operation: Mapping[str, Any]) -> str:
    """The least role that may call a route."""
    named = [role for entry in operation.get("security", ()) for role in entry["apiKey"]]
    return str(named[-1]) if named else "open"


def route_section(method: str, path: str, operation: Mapping[str, Any], specs: list[str]) -> str:
    """One route: summary, parameters, body and answers."""
    text = f"### `{method.upper()} {path}`\n\n"
    summary = operation.get("summary", "").rstrip(".")
    text += f"**{escape(summary)}.** Role: `{role_of(operation)}`.\n\n"
    if description := operation.get("description", "").strip():
        text += escape(description) + "\n\n"
    rows = [
        (
            code(parameter["name"]),
            parameter["in"],
            kind_of(parameter.get("schema", {}), specs),
            cell(parameter.get("description", "")),
        )
        for parameter in operation.get("parameters", [])
    ]
    text += table(("parameter", "in", "type", "meaning"), rows)
    if body := operation.get("requestBody"):
        text += f"Body: {body_of(body['content'], specs)}\n\n"
    answers = []
    for status, answer in sorted(operation["responses"].items()):
        if status != "default":
            what = body_of(answer.get("content", {}), specs)
            answers.append(f"`{status}` {what or cell(answer.get('description', ''))}")
    return text + f"Answers: {'; '.join(answers)}.\n\n"


def routes_page(of: Mapping[str, Any]) -> str:
    """Build the page of routes, grouped as in the OpenAPI document."""
    specs = spec_names(of)
    text = heading("HTTP", ROUTES_INTRODUCTION)
    descriptions = {tag["name"]: tag.get("description", "") for tag in of.get("tags", [])}
    by_tag: dict[str, list[str]] = {name: [] for name in descriptions}
    for path, methods in of["paths"].items():
        for method in METHODS:
            if operation := methods.get(method):
                tag = (operation.get("tags") or ["other"])[0]
                by_tag.setdefault(tag, []).append(route_section(method, path, operation, specs))
    for tag, sections in by_tag.items():
        if sections:
            text += f"## {tag.capitalize()}\n\n{escape(descriptions.get(tag, ''))}\n\n" + "".join(sections)
    return text


def spec_page(of: Mapping[str, Any]) -> str:
    """Build the page of job specs and all that they hold."""
    specs, known = spec_names(of), schemas(of)
    sections = (schema_section(name, known[name], specs) for name in specs)
    return heading("Job spec", SPEC_INTRODUCTION) + "".join(sections)


def objects_page(of: Mapping[str, Any]) -> str:
    """Build the page of all other schemas."""
    specs, known = spec_names(of), schemas(of)
    names = sorted(set(known) - set(specs) - {"JobSpec"})
    sections = (schema_section(name, known[name], specs) for name in names)
    return heading("JSON objects", OBJECTS_INTRODUCTION) + "".join(sections)
