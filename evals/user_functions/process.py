"""A process that calls functions: a request a line on standard input, an answer a line on standard output."""

import inspect
import json
import os
import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter

#: limit of an import
IMPORT_SECONDS = 60.0


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a function prints goes to the log
    for line in sys.stdin:
        answers.write(f"{_answer(json.loads(line))}\n")
        answers.flush()


def _answer(request: Mapping[str, Any]) -> str:
    module, _, name = request["function"].partition(":")
    try:
        # the alarm ends this process, whatever it is doing
        signal.setitimer(signal.ITIMER_REAL, IMPORT_SECONDS)
        function = getattr(import_module(module), name)
        if request.get("describe"):
            value = _described(function)
        else:
            signal.setitimer(signal.ITIMER_REAL, request["seconds"])
            value = function(**request["arguments"])
        return json.dumps({"value": value}, allow_nan=False)
    except Exception as error:  # noqa: BLE001 (the answer is the error)
        return json.dumps({"error": f"{type(error).__name__}: {error}"})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _described(function: Any) -> dict[str, Any]:
    description = inspect.getdoc(function)
    if not description:
        raise ValueError("a tool needs a docstring, which tells the model what it does")
    parameters = TypeAdapter(function).json_schema()
    for one in parameters.get("properties", {}).values():
        one.pop("title", None)
    return {"description": description, "parameters": parameters}


if __name__ == "__main__":
    main()
