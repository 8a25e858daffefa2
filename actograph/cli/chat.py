"""`actograph chat`: one question, or a conversation at the terminal."""

import sys
from collections.abc import Iterator
from typing import Any

import typer

from actograph.cli.flags import model_with
from actograph.cli.job_flags import STEER
from actograph.cli.shell import Shell, emit, note
from actograph.contract.errors import InvalidRequest

#: words that end a conversation
LEAVE = frozenset({"/exit", "/quit", "/bye"})


def chat(
    shell: Shell,
    question: list[str] = typer.Argument(
        None, help="Question; - reads standard input. Default: a conversation."
    ),
    *,
    model: str | None = typer.Option(None, "--model", "-m", help="Model. Default: the service's first."),
    adapter: str | None = typer.Option(None, help="LoRA of --model, by folder, Hub id or name."),
    system: str | None = typer.Option(None, "--system", "-s", help="System message."),
    max_tokens: int | None = typer.Option(None, min=1, help="Maximum number of tokens."),
    temperature: float | None = typer.Option(None, min=0.0, help="0 is greedy."),
    top_p: float | None = typer.Option(None, min=0.0, max=1.0, help="Nucleus sampling probability."),
    seed: int | None = typer.Option(None, help="Seed: the same seed gives the same answer."),
    thinking: bool = typer.Option(False, "--thinking", help="Let the model think first."),
    steer: list[str] = typer.Option([], help=STEER),
    capture: str | None = typer.Option(None, help="POINTS[@LAYERS] to store, such as resid_post@8,12,16."),
) -> None:
    """Chat with a model. Prints the answer while the model generates it."""
    fields: dict[str, Any] = {
        "model": model if adapter is None else model_with(model, adapter),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "enable_thinking": thinking or None,
        "capture": capture,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    if steer:
        fields["interventions"] = steer
    said: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    asked = [sys.stdin.read()] if question == ["-"] else [" ".join(question)] if question else None
    if asked is None and shell.json:
        raise InvalidRequest("--format json needs a question on the command line")
    for text in asked or _typed():
        said.append({"role": "user", "content": text})
        if shell.json:
            emit(shell.client.chat(said, **fields).model_dump_json())
        else:
            said.append({"role": "assistant", "content": _answer(shell, said, fields)})


def _answer(shell: Shell, said: list[dict[str, str]], fields: dict[str, Any]) -> str:
    """Print the answer while it is generated, and return it."""
    whole, session_id, finish = "", None, None
    for chunk in shell.client.chat.stream(said, **fields):
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
