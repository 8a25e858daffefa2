"""`actograph chat`: one question, or a conversation at the terminal."""

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.flags import job_spec
from actograph.cli.flags.options import FormatOption, client_of
from actograph.cli.output.output import Format, emit, note
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client

#: words that end a conversation
LEAVE = frozenset({"/exit", "/quit", "/bye"})


def chat(
    ctx: typer.Context,
    *,
    question: Annotated[
        list[str] | None, typer.Argument(help="Question; - reads standard input. Default: a conversation.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model. Default: the service's first.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="System message.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Maximum number of tokens.")
    ] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", min=0.0, max=1.0, help="Nucleus sampling probability.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed: the same seed gives the same answer.")
    ] = None,
    thinking: Annotated[bool, typer.Option("--thinking", help="Let the model think first.")] = False,
    capture: Annotated[
        str | None,
        typer.Option(
            "--capture", metavar="POINTS@LAYERS", help="Activations to store, such as resid_post@8,12,16."
        ),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Chat with a model. The answer is printed while it is generated."""
    fields: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "enable_thinking": thinking or None,
        "capture": None if capture is None else job_spec.capture_of(capture),
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    said: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    asked = [sys.stdin.read()] if question == ["-"] else [" ".join(question)] if question else None
    with closing(client_of(ctx)) as client:
        if asked is not None and output is Format.JSON:
            said.append({"role": "user", "content": asked[0]})
            emit(client.chat(said, model=model, **fields).model_dump_json())
            return
        if output is Format.JSON:
            raise InvalidRequest("--format json needs a question on the command line")
        for text in asked or _typed():
            said.append({"role": "user", "content": text})
            said.append({"role": "assistant", "content": _answer(client, said, model, fields)})


def _answer(client: "Client", said: list[dict[str, str]], model: str | None, fields: dict[str, Any]) -> str:
    """Print the answer while it is generated, and return it."""
    whole = ""
    session_id, finish = None, None
    for chunk in client.chat.stream(said, model=model, **fields):
        for choice in chunk.choices:
            piece = choice.delta.content or ""
            whole += piece
            sys.stdout.write(piece)
            sys.stdout.flush()
            finish = choice.finish_reason or finish
        session_id = chunk.session_id or session_id
    emit("")
    if finish == "length":
        note("(cut off at max_tokens)")
    if session_id is not None:
        note(f"session {session_id}")
    return whole


def _typed() -> Iterator[str]:
    """Yield typed lines that are not empty, until Ctrl-D or a word of `LEAVE`."""
    talks = sys.stdin.isatty()
    if talks:
        note("Ctrl-D or /exit ends the conversation.")
    while True:
        if talks:
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line or line.strip() in LEAVE:
            return
        if line.strip():
            yield line.strip()
