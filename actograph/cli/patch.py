"""`actograph patch`: activation patching between stored sessions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from actograph.cli.flags import names
from actograph.cli.jobs import follow
from actograph.cli.shell import Shell
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client.jobs import JobHandle

_SIDE = "Job or session. Sessions of a job by tag or condition: JOB:tag=clean."
#: fields of a query that a side may name
_FILTERS = ("tag", "condition")
EXAMPLES = [
    "actograph patch job_3fa2:tag=clean job_3fa2:tag=corrupted --pair-by group --points mlp_out@8:20",
    "actograph patch job_3fa2:condition=plain job_3fa2:condition=ep02 --metric readout:truth@resid_post.20",
    "actograph patch ses_3760 ses_81c0 --points z@8:12 --heads all --positions -1 --answer ' Mary'",
]


def _flag(of: Any, about: str, **more: Any) -> Any:
    return Annotated[of | None, typer.Option(help=about, **more)]


FLAGS: dict[str, Any] = {
    "points": _flag(
        str, "POINTS[@LAYERS] to patch, such as resid_pre,mlp_out@8:20. (default: resid_pre@all)"
    ),
    "heads": _flag(str, "Patch single heads of q, k, v or z: all, or 0,5."),
    "positions": _flag(str, "Tokens of the prompt, each a cell: all, or 5,-1,prompt[3:6]. (default: all)"),
    "pair_by": _flag(
        str,
        "What the sessions of a pair have in common. (default: sample)",
        metavar="sample|group|column:NAME",
    ),
    "direction": _flag(
        Literal["denoise", "noise"], "denoise: clean rows into the corrupted run. (default: denoise)"
    ),
    "metric": _flag(
        str, "log_probability, logit_difference, or readout:VECTOR[@HOOK]. (default: log_probability)"
    ),
    "answer": _flag(str, "Token. Default: the first one of the clean session.", metavar="ID|TEXT"),
    "against": _flag(
        str, "Token of logit_difference. Default: the first one of the corrupted session.", metavar="ID|TEXT"
    ),
    "limit": _flag(int, "Maximum number of sessions of each side.", min=1),
    "priority": _flag(int, "0 runs first, 9 last."),
    "tag": _flag(list[str], "Tag of the job. Repeat for more."),
}


def patch(
    shell: Shell,
    clean: Annotated[str, typer.Argument(metavar="CLEAN", help=_SIDE)],
    corrupted: Annotated[str, typer.Argument(metavar="CORRUPTED", help="The partners, as CLEAN.")],
    *,
    watch: bool = typer.Option(True, help="Follow the job to its end."),
    **given: Any,
) -> "JobHandle":
    """Put rows of clean runs into corrupted ones, cell by cell, and print the largest effects.

    A cell is one point, layer, position and perhaps head. The sessions must store whole rows of the points.
    """
    typed = {name: value for name, value in given.items() if value not in (None, [])}
    limit = {"limit": typed.pop("limit")} if "limit" in typed else {}
    sides = [_query(shell, side, name) | limit for side, name in ((clean, "CLEAN"), (corrupted, "CORRUPTED"))]
    job = shell.client.patch(*sides, **_options(typed))
    shell.show(job, lambda job: str(job.id))
    return follow(shell, job.id) if watch else job


def _query(shell: Shell, typed: str, argument: str) -> dict[str, Any]:
    """The query of `JOB`, `SESSION` or `JOB:FIELD=VALUE`. Raises InvalidRequest."""
    source, colon, rest = typed.partition(":")
    field, equals, value = rest.partition("=")
    if not source or (colon and (field not in _FILTERS or not (equals and value))):
        known = ", ".join(_FILTERS)
        raise InvalidRequest(
            f"{argument} {typed!r} is not JOB, SESSION or JOB:FIELD=VALUE, with a field of {known}"
        )
    query = {"ids": [source]} if source.startswith("ses_") else {"jobs": [shell.id("job", source)]}
    return query | ({field: value} if colon else {})


def _options(typed: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `client.patch`. Raises InvalidRequest."""
    from actograph.contract.job_options import capture_of, readout_of

    options = {name: value for name, value in typed.items() if name != "tag"}
    if "tag" in typed:
        options["tags"] = typed["tag"]
    if "points" in typed:
        chosen = capture_of(typed["points"])
        if "hooks" in chosen:
            raise InvalidRequest(
                f"--points: {chosen['hooks'][0]} is a hook; name a point and its layers, such as resid_pre@3",
                param="points",
            )
        options |= chosen
    if "heads" in typed and typed["heads"] != "all":
        options["heads"] = _numbers(typed["heads"])
    if "positions" in typed and typed["positions"] != "all":
        options["positions"] = [_number(one) for one in names([typed["positions"]])]
    for name in ("answer", "against"):
        if name in typed:
            options[name] = int(typed[name]) if typed[name].isdecimal() else typed[name]
    kind, colon, readout = typed.get("metric", "").partition(":")
    if colon:
        if kind != "readout":
            raise InvalidRequest(
                f"--metric {typed['metric']!r} is not log_probability, logit_difference or "
                "readout:VECTOR[@HOOK]",
                param="metric",
            )
        options["metric"] = {"readout": readout_of(readout)}
    return options


def _numbers(text: str) -> list[int]:
    """Raises InvalidRequest."""
    try:
        return [int(one) for one in names([text])]
    except ValueError:
        raise InvalidRequest(f"--heads {text!r} is not valid; use all, or 0,5", param="heads") from None


def _number(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text
