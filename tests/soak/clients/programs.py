"""Runs under a client's own Python: what its users write. No test imports it.

    programs.py CLIENT URL MODEL

Writes JSON to standard output.
"""

import asyncio
import importlib
import json
import sys
from typing import Any, Literal

QUESTION = "Tom has 3 apples and buys 4 more. How many?"
MESSAGES = [{"role": "user", "content": QUESTION}]
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Calculate.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
}
CAPTURE = {"capture": {"points": ["resid_post"], "layers": [0]}}


def _place() -> Any:
    """A form that no weights write by chance. Nothing may be added to it: they would, and never end."""
    pydantic = importlib.import_module("pydantic")
    city, size = (Literal["Paris", "Rome"], ...), (int, pydantic.Field(ge=0, le=99))
    closed = pydantic.ConfigDict(extra="forbid")
    return pydantic.create_model("Place", __doc__="A place.", __config__=closed, city=city, size=size)


def agents(url: str, model: str) -> dict[str, Any]:
    """An agent with one tool, whole and streamed, over /v1/responses."""
    sdk, openai = importlib.import_module("agents"), importlib.import_module("openai")
    sdk.set_default_openai_client(openai.AsyncOpenAI(base_url=url, api_key="none"), use_for_tracing=False)
    sdk.set_tracing_disabled(True)
    asked: list[str] = []

    @sdk.function_tool
    def weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather of a city."""
        asked.append(city)
        return "7 degrees"

    # the small model would not end by itself
    more = CAPTURE | {"stop": ["=", "1", "\n"]}
    settings = sdk.ModelSettings(temperature=0, max_tokens=200, tool_choice="required", extra_body=more)
    agent = sdk.Agent(name="A", instructions="Count.", model=model, tools=[weather], model_settings=settings)

    async def run() -> tuple[Any, Any, set[str]]:
        whole = await sdk.Runner.run(agent, QUESTION, max_turns=4)
        streamed = sdk.Runner.run_streamed(agent, QUESTION, max_turns=4)
        return whole, streamed, {event.type async for event in streamed.stream_events()}

    whole, streamed, kinds = asyncio.run(run())
    items = [item.type for item in whole.new_items]
    return {"asked": asked, "items": items, "whole": whole.final_output, "streamed": streamed.final_output,
            "kinds": sorted(kinds), "turns": len(whole.raw_responses)}  # fmt: skip


def instructor(url: str, model: str) -> dict[str, Any]:
    """A valid object, as a tool's arguments and as a JSON schema."""
    library, openai = importlib.import_module("instructor"), importlib.import_module("openai")
    found = {}
    for mode in ("TOOLS", "JSON_SCHEMA"):
        patched = library.from_openai(
            openai.OpenAI(base_url=url, api_key="none"), mode=getattr(library.Mode, mode)
        )
        options = {"model": model, "messages": MESSAGES, "temperature": 5, "max_tokens": 120}
        place = patched.chat.completions.create(response_model=_place(), max_retries=0, **options)
        found[mode] = place.model_dump()
    return found


def litellm(url: str, model: str) -> dict[str, Any]:
    """A completion with a capture, streamed, with a tool, and a response."""
    library = importlib.import_module("litellm")
    options: dict[str, Any] = {
        "model": f"openai/{model}", "api_base": url, "api_key": "none", "temperature": 0, "max_tokens": 12
    }  # fmt: skip
    whole = library.completion(messages=MESSAGES, extra_body=CAPTURE, **options)
    chunks = list(library.completion(messages=MESSAGES, stream=True, **options))
    called = library.completion(
        messages=MESSAGES, tools=[CALCULATOR], tool_choice="required", **options | {"max_tokens": 96}
    )
    del options["max_tokens"]
    response = library.responses(input=QUESTION, max_output_tokens=12, **options)
    return {
        "whole": whole.choices[0].message.content,
        "session": getattr(whole, "session_id", None),
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "arguments": called.choices[0].message.tool_calls[0].function.arguments,
        "response": response.output[0].content[0].text,
    }


def langchain(url: str, model: str) -> dict[str, Any]:
    """A chat model: invoked, streamed, with a tool, with a form, and over /v1/responses."""
    library = importlib.import_module("langchain_openai")
    options: dict[str, Any] = {"base_url": url, "api_key": "none", "model": model, "temperature": 0}
    chat = library.ChatOpenAI(max_completion_tokens=12, extra_body=CAPTURE, **options)
    long = library.ChatOpenAI(max_completion_tokens=120, **options)
    over = library.ChatOpenAI(max_completion_tokens=12, use_responses_api=True, **options)
    called = long.bind_tools([CALCULATOR], tool_choice="any").invoke(QUESTION)
    return {
        "whole": chat.invoke(QUESTION).content,
        "streamed": "".join(chunk.content for chunk in chat.stream(QUESTION)),
        "arguments": called.tool_calls[0]["args"],
        "form": long.with_structured_output(_place()).invoke(QUESTION).model_dump(),
        "response": over.invoke(QUESTION).text,
    }


if __name__ == "__main__":
    client, *arguments = sys.argv[1:]
    json.dump(globals()[client](*arguments), sys.stdout)
