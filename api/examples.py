"""Examples of request bodies for the OpenAPI document; a test checks that each is accepted.

Keyed by the name of the body's schema, then by what the example shows.
"""

from collections.abc import Mapping
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


def add_examples(document: dict[str, Any]) -> None:
    """Put the examples of each JSON body into an OpenAPI document, at the bodies that they are of."""
    for operations in document["paths"].values():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is None:
                continue
            name = content["schema"].get("$ref", "").rpartition("/")[2]
            if name in EXAMPLES:
                content["examples"] = {about: {"value": value} for about, value in EXAMPLES[name].items()}
