"""Routes that carry their role, lane, body and error answers beside the path.

`Routes.add` is the one place that declares a route. Middleware reads the same rules before routing, so that a
body is received only from callers that may send it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, TypeAdapter
from starlette.routing import compile_path

from actograph.contract.service.key_roles import Role
from api.problems.errors import documented

F = TypeVar("F", bound=Callable[..., Any])

#: probes and the sign-in page, open to all; they show no data of owners
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/sign-in", "/static/{name}"})
#: beginning of the addresses of the dashboard's own files, which are open too
STATIC_PATH = "/static/"
READ, SUBMIT, ADMIN = Role.READ, Role.SUBMIT, Role.ADMIN


@dataclass(frozen=True)
class Body:
    """A JSON body: its model, examples for the OpenAPI document, and its largest size."""

    model: type[BaseModel] | TypeAdapter[Any]
    examples: Mapping[str, Any]
    name: str = ""
    required: bool = True
    #: None: ACTOGRAPH_MAX_BODY_BYTES is the only limit
    max_bytes: int | None = 4 << 20

    @property
    def schema(self) -> str:
        """The name of the schema in the OpenAPI document."""
        return self.name or getattr(self.model, "__name__", "")

    def documented(self) -> dict[str, Any]:
        """The `requestBody` of an operation."""
        content = {"schema": {"$ref": f"#/components/schemas/{self.schema}"}}
        return {"required": self.required, "content": {"application/json": content}}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Requirements of one route."""

    #: the least role that may call the route
    role: Role
    #: see `api.requests.lanes`; "" for none
    lane: str = ""
    body: Body | None = None
    #: True for a form; a JSON body is in `body`
    takes_form: bool = False

    @property
    def takes_body(self) -> bool:
        """True if the route reads a body."""
        return self.takes_form or self.body is not None


#: (method, path with its parameters) -> rule of the route; open paths have none
RULES: dict[tuple[str, str], Rule] = {}
_PATTERNS: dict[str, list[tuple[re.Pattern[str], Rule]]] = {}


def _register(method: str, path: str, rule: Rule) -> None:
    RULES[method, path] = rule
    _PATTERNS.setdefault(method, []).append((compile_path(path)[0], rule))


for _path in ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"):
    _register("GET", _path, Rule(role=READ))


def rule_of(method: str, path: str) -> Rule | None:
    """The rule of the route at an address; None if there is no such route.

    If two patterns match, the stricter role applies.
    """
    strictest = None
    for pattern, rule in _PATTERNS.get(method, ()):
        if pattern.match(path) and (strictest is None or not strictest.role.includes(rule.role)):
            strictest = rule
    return strictest


class Routes(APIRouter):
    """The routes of one resource."""

    def add(
        self,
        method: str,
        path: str,
        role: Role,
        summary: str,
        *,
        errors: Sequence[int] = (),
        body: Body | None = None,
        takes_form: bool = False,
        lane: str | None = None,
        alias: str = "",
        responses: Mapping[int | str, dict[str, Any]] | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Declare a route.

        Args:
            errors: statuses to document beside those of every route with an id or a body.
            lane: by default "writes" for methods that write, and none for others.
            alias: another path of the same route.
            options: arguments of FastAPI's `add_api_route`.
        """
        address = self.prefix + path
        if lane is None:
            lane = "" if method in ("GET", "HEAD") else "writes"
        extra: dict[str, Any] = {}
        if address not in OPEN_PATHS:
            extra["x-role"] = role
            rule = Rule(role=role, lane=lane, body=body, takes_form=takes_form)
            for at in (path, alias) if alias else (path,):
                _register(method, self.prefix + at, rule)
        statuses = set(errors) | ({404} if "{" in address else set())
        if body is not None:
            # OpenAI's clients expect 400 for a body at fault
            statuses |= {408, 413, 415} | (set() if 400 in errors else {422})
            extra["requestBody"] = body.documented()

        def register(endpoint: F) -> F:
            name = options.pop("operation_id", endpoint.__name__)
            named = [(path, name, summary)]
            if alias:
                named.append((alias, f"{name}_alias", f"Alias of {method} {address}"))
            for at, operation_id, text in named:
                self.add_api_route(
                    at,
                    endpoint,
                    methods=[method],
                    operation_id=operation_id,
                    summary=text,
                    openapi_extra=extra,
                    responses={**documented(*sorted(statuses)), **(responses or {})},
                    **options,
                )
            return endpoint

        return register


def bodies() -> Sequence[Body]:
    """Every JSON body, once."""
    found = {rule.body.schema: rule.body for rule in RULES.values() if rule.body is not None}
    return list(found.values())
