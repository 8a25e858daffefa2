"""Examples for the OpenAPI document, of request bodies and of answers; a test checks each against its model.

Those of bodies are keyed by the name of the body's schema, then by what the example shows. Those of answers
come from a run on the demo's model (long lists are cut) and are keyed by the name of the schema, in
`answer_examples.json`; pages of a list are made of their items.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

Examples = Mapping[str, Mapping[str, Any]]

VECTOR_ID = "vec_0f17c1b05243b6a08788fb444b6f4aa0"
FILE_ID = "file_6f1ed002ab5595859014ebf0951522d9"

JOBS: Mapping[str, Any] = {
    "evaluation with capture": {
        "kind": "evaluation",
        "model": "Qwen/Qwen3-0.6B",
        "task": "gsm8k",
        "dataset": {"file_id": FILE_ID},
        "limit": 1319,
        "sampling": {"temperature": 0.0, "max_tokens": 512},
        "capture": {"points": ["attn_in", "mlp_in"], "layers": [8, 12, 16]},
        "tags": ["night"],
    },
    "conditions on the same problems": {
        "kind": "evaluation",
        "model": "Qwen/Qwen3-0.6B",
        "dataset": {"path": "gsm8k/test.jsonl"},
        "conditions": [
            {"name": "baseline"},
            {"name": "ep02", "suffix": "This is very important to my career."},
            {"name": "calculator", "mode": "with_tools"},
            {
                "name": "steered",
                "interventions": [
                    {"hook": "resid_post.12", "op": "add", "vector_id": VECTOR_ID, "coefficient": 4.0}
                ],
            },
        ],
        "capture": {"points": ["resid_post"], "layers": "all"},
    },
    "capture from prompts": {
        "kind": "capture",
        "model": "Qwen/Qwen3-0.6B",
        "inputs": [
            {"prompt": "The capital of France is"},
            {"messages": [{"role": "user", "content": "Why is the sky blue?"}]},
        ],
        "sampling": {"max_tokens": 64, "temperature": 0.7, "seed": 1},
        "capture": {"hooks": ["resid_post.12", "logits"], "positions": "generated"},
    },
    "extraction of every layer": {
        "kind": "extract",
        "model": "Qwen/Qwen3-30B-A3B",
        "dataset": {"hub": "openai/gsm8k", "config": "main", "split": "train"},
        "text_field": "question",
        "capture": {"points": ["resid_post", "router_logits"], "layers": None, "stats": True},
        "truncate": True,
    },
}

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "JobSpec": JOBS,
    "ChatCompletionRequest": {
        "a question, with activations": {
            "model": "Qwen/Qwen3-0.6B",
            "messages": [{"role": "user", "content": "What is 3 + 4?"}],
            "max_tokens": 64,
            "temperature": 0.7,
            "seed": 1,
            "capture": {"points": ["resid_post"], "layers": [12]},
        }
    },
    "CompletionRequest": {
        "a text to continue": {
            "model": "Qwen/Qwen3-0.6B",
            "prompt": "The capital of France is",
            "max_tokens": 8,
            "temperature": 0,
        }
    },
    "BatchRequest": {
        "a night's requests": {
            "input_file_id": FILE_ID,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "metadata": {"project": "career"},
        }
    },
    "NewVector": {
        "a direction": {"name": "career", "hook": "resid_post.2", "vector": [0.1, -0.2, 0.3], "model": "demo"}
    },
    "RescoreRequest": {
        "another scorer": {"scorers": ["numeric", {"name": "efficiency", "target_tokens": 128}]}
    },
    "ActivationComparisonRequest": {
        "directions at the last prompt token": {
            "condition": "ep02",
            "hooks": ["resid_post.12"],
            "rows": "last_prompt",
            "store_as": "career",
        }
    },
    "SessionUpdate": {"keep for good": {"pinned": True, "tags": ["paper"]}},
    "ModelLoadRequest": {
        "another model": {
            "model_id": "Qwen/Qwen3-0.6B",
            "dtype": "bfloat16",
            "savepoints": [{"name": "probe_layer", "selector": "model.layers[12].output"}],
        }
    },
    "NewKey": {
        "for one person": {"name": "laptop", "role": "submit", "owner": "alice", "requests_per_minute": 600}
    },
    "KeyUpdate": {"another limit": {"requests_per_minute": 60, "quota_bytes": None}},
    "PauseRequest": {"with a reason": {"reason": "the GPU is needed until noon"}},
}


#: answers that are no JSON, by operation and media type
TEXTS: Mapping[tuple[str, str], str] = {
    ("livez", "text/plain"): "ok\n",
    (
        "readyz",
        "text/plain",
    ): "[+]database ok\n[+]broker ok\n[+]store ok\n[+]worker ok\nreadyz check passed\n",
    ("metrics", "text/plain"): (
        "# HELP actograph_jobs Jobs in the index.\n# TYPE actograph_jobs gauge\n"
        'actograph_jobs{status="queued"} 2.0\n'
    ),
    ("follow_job", "text/event-stream"): (
        'retry: 2000\n\nid: 1\nevent: job.queued\ndata: {"id":1,"event":"job.queued","data":{}}\n\n'
    ),
    ("create_chat_completion", "text/event-stream"): (
        'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"7"}}]}\n\n'
        "data: [DONE]\n\n"
    ),
    ("create_completion", "text/event-stream"): (
        'data: {"object":"text_completion","choices":[{"index":0,"text":" 7"}]}\n\ndata: [DONE]\n\n'
    ),
}
#: parameters of a path
PARAMETERS: Mapping[str, str] = {
    "job_id": "job_ec8c48724aa350cf6dd470ce3e9b233b",
    "load_id": "job_0d1ecb8b3b7f5bb2ad6ed3d3a7a0f5a3",
    "sample_id": "smp_5cb5cdb6ee4c0f4bd3b2a3a5e0e5f7b1",
    "session_id": "ses_8dd0b0a3c1c74dd3b4f6b65e06f0a6d2",
    "file_id": FILE_ID,
    "vector_id": VECTOR_ID,
    "batch_id": "batch_d9fbb3511650f1ab351323d7b4e72a24",
    "key_id": "key_0a62f59b8c5f142566aa73165f793c1a",
    "hook": "resid_post.12",
    "name": "manifest.json",
    "model": "Qwen/Qwen3-0.6B",
}
_PAGE = "ListPage_"


@lru_cache(maxsize=1)
def answers() -> Mapping[str, Any]:
    """Examples of answers by the name of their schema."""
    content = Path(__file__).with_name("answer_examples.json").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(content)
    return found


def answer_of(schema: str) -> Any:
    """The example of a schema by its name; None where there is none."""
    if not schema.startswith(_PAGE):
        return answers().get(schema)
    item = answers().get(schema.removeprefix(_PAGE).removesuffix("_"))
    if item is None:
        return None
    return {
        "object": "list",
        "data": [item],
        "first_id": item.get("id"),
        "last_id": item.get("id"),
        "has_more": False,
    }


def add_examples(document: dict[str, Any]) -> None:
    """Put the examples into an OpenAPI document, at the bodies, answers and parameters that they are of."""
    for operations in document["paths"].values():
        for operation in operations.values():
            _add_body(operation)
            _add_answers(operation)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in PARAMETERS:
                    parameter["example"] = PARAMETERS[parameter["name"]]


def _add_body(operation: dict[str, Any]) -> None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None:
        name = content["schema"].get("$ref", "").rpartition("/")[2]
        if name in EXAMPLES:
            content["examples"] = {about: {"value": value} for about, value in EXAMPLES[name].items()}


def _add_answers(operation: dict[str, Any]) -> None:
    for status, response in operation["responses"].items():
        if not status.startswith("2"):
            continue
        for media_type, content in response.get("content", {}).items():
            example = TEXTS.get((operation["operationId"], media_type))
            if media_type == "application/json":
                name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
                example = answer_of(name or operation["operationId"])
            if example is not None:
                content["example"] = example
