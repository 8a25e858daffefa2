"""One of everything that an owner has, and the keys of others."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api.conftest import EMBED, Keyed
from tests.support.saes import write_sae

CHANGE = {"pinned": True, "tags": ["stolen"], "expires_at": 2**40}
#: every field of the request that the route takes, all of which would change something
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/jobs/{job_id}/rescore"): {"scorers": ["strict-match"]},
    ("PATCH", "/v1/activations/sessions/{session_id}"): CHANGE,
    ("PATCH", "/v1/activations/session/{session_id}"): CHANGE,
    ("PATCH", "/v1/activations/sessions"): CHANGE,
}


@dataclass
class Things:
    """One of each, all Alice's, and the keys of three people."""

    keyed: Keyed
    ids: dict[str, str]
    alice: dict[str, str]
    reader: dict[str, str]
    bob: dict[str, str]
    root: dict[str, str]
    bodies = BODIES

    def place(self, path: str, found: dict[str, str]) -> str:
        for name, value in found.items():
            path = path.replace("{" + name + "}", value)
        path = path.replace("{hook}", "embed").replace("{name}", "manifest.json")
        return f"{path}?hook=embed" if path.endswith("/matrix") else path

    def make_batch(self) -> str:
        """The id of a batch of one request of Alice's."""
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
        request = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
        part = {"file": ("batch.jsonl", json.dumps(request).encode())}
        input_file = self.keyed.client.post(
            "/v1/files", files=part, data={"purpose": "batch"}, headers=self.alice
        )
        wanted = {"input_file_id": input_file.json()["id"], "endpoint": "/v1/chat/completions"}
        batch = self.keyed.client.post(
            "/v1/batches", json=wanted | {"completion_window": "24h"}, headers=self.alice
        )
        assert batch.status_code == 200, batch.text
        return str(batch.json()["id"])


@pytest.fixture
def things(keyed: Keyed) -> Things:
    keyed.load_model()
    alice = keyed.headers(keyed.make_key("submit", owner="alice"))
    reader = keyed.headers(keyed.make_key("read", owner="alice"))
    bob = keyed.headers(keyed.make_key("submit", owner="bob"))
    spec = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "Hello"}, {"prompt": "Bye"}]}
    spec |= {"conditions": [{"name": "a"}, {"name": "b"}], "tags": ["night"]}
    job = keyed.client.post("/v1/jobs", json=spec, headers=alice)
    assert job.status_code == 202, job.text
    job_id = job.json()["id"]
    (lease,) = keyed.claim(job_id)
    session_id = keyed.finish(lease, tensors=EMBED)
    assert session_id is not None
    line = json.dumps({"question": "1 + 1?", "answer": "#### 2"}).encode() + b"\n"
    file = keyed.client.post("/v1/files", files={"file": ("rows.jsonl", line)}, headers=alice)
    vector = {"name": "v", "hook": "resid_post.1", "vector": [1.0] * 8}
    stored = keyed.client.post("/v1/vectors", json=vector, headers=alice)
    write_sae(Path(keyed.services.settings.data_roots[0]) / "sae", d_in=8)
    sae = keyed.client.post("/v1/saes", json={"name": "s", "path": "sae"}, headers=alice)
    return Things(
        keyed=keyed,
        ids={
            "job_id": job_id,
            "sample_id": lease.id,
            "session_id": session_id,
            "file_id": file.json()["id"],
            "vector_id": stored.json()["id"],
            "sae_id": sae.json()["id"],
        },
        alice=alice,
        reader=reader,
        bob=bob,
        root=keyed.headers(),
    )
