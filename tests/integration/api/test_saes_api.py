"""/v1/saes: SAEs are read once, kept in the store, and named by captures."""

from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.contract.openai import ChatCompletionRequest
from actograph.contract.saes import SaeConfig
from api.kinds import KINDS
from evals import plans
from storage.artifacts.checked_files import digest_of
from storage.jobs import jobs
from storage.queue import workers
from storage.upkeep import reaper
from tests.integration.api.conftest import Problem, Service, capture_spec
from tests.support.command_line import Run
from tests.support.saes import write_sae


def folder_of(service: Service, name: str = "sae") -> Path:
    return Path(service.services.settings.data_roots[0]) / name


def hooks_of(service: Service, job_id: str) -> list[str] | None:
    with service.database.read() as session:
        return jobs.get(session, job_id).hooks


def store(service: Service, **changes: Any) -> Any:
    write_sae(folder_of(service), d_in=8)
    answer = service.client.post("/v1/saes", json={"name": "res-1", "path": "sae"} | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_an_sae_is_stored_listed_read_and_deleted(service: Service, problem: Problem) -> None:
    service.load_model()
    made = store(service, model="demo", metadata={"by": "us"})
    assert (made["object"], made["name"], made["hook"], made["model"]) == (
        "sae",
        "res-1",
        "resid_post.1",
        "demo",
    )
    assert made["config"]["d_sae"] == 24
    weights = (folder_of(service) / "sae_weights.safetensors").read_bytes()
    other = store(service, name="mlp-2", hook="blocks.2.hook_mlp_out")
    assert (other["hook"], other["model"]) == ("mlp_out.2", None)
    listed = service.client.get("/v1/saes").json()
    assert [one["id"] for one in listed["data"]] == [other["id"], made["id"]]
    named = service.client.get("/v1/saes", params={"hook": "resid_post.1"}).json()
    assert [one["id"] for one in named["data"]] == [made["id"]]
    for reference in (made["id"], made["id"][:12], "res-1"):
        assert service.client.get(f"/v1/saes/{reference}").json() == made
    (file,) = [
        one for one in service.client.get("/v1/files").json()["data"] if one["filename"].startswith("res-1")
    ]
    assert (file["purpose"], file["bytes"]) == ("sae", len(weights) == made["bytes"] and len(weights))
    assert digest_of(service.services.store, f"files/{file['id']}") == (len(weights), made["sha256"])
    problem(service.client.delete(f"/v1/files/{file['id']}"), 409, "conflict", says=made["id"])
    again = service.client.post("/v1/saes", json={"name": "res-1", "path": "sae"})
    problem(again, 409, "conflict", says=f"{made['id']} is named res-1 already")
    gone = service.client.delete("/v1/saes/res-1").json()
    assert gone == {"id": made["id"], "object": "sae", "deleted": True}
    problem(service.client.get("/v1/saes/res-1"), 404, says="there is no SAE res-1. Known: mlp-2")
    problem(service.client.get(f"/v1/saes/{made['id']}"), 404, "not_found")
    problem(service.client.get(f"/v1/files/{file['id']}"), 404, "not_found")
    reaper.reap(service.database, service.services.store)
    assert not service.services.store.exists(f"files/{file['id']}")


def test_a_wrong_sae_is_refused_by_field(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model()
    write_sae(folder_of(service), d_in=8)
    write_sae(folder_of(service, "wide"), d_in=9)
    write_sae(folder_of(service, "unnamed"), d_in=8, metadata=None)
    for change, pointer, says in [
        ({"name": "no spaces"}, "/name", "Write a name of up to 64 letters"),
        ({"name": "sae_12"}, "/name", "looks like an id"),
        ({"path": None}, "", "exactly one of path and hub"),
        ({"hub": "a/b"}, "", "exactly one of path and hub"),
        ({"folder": "x"}, "", "belong to hub"),
        ({"path": None, "hub": "a/b", "folder": "../x"}, "/folder", "is no folder of a repository"),
        ({"path": "nothing"}, "/path", "no such file under the server's data roots"),
        ({"path": "/etc"}, "/path", "no such file under the server's data roots"),
        ({"path": "wide"}, "/hook", "the SAE takes rows of 9 numbers, resid_post.1 is 8 wide"),
        ({"path": "unnamed"}, "/hook", "the files name no hook"),
        ({"hook": "resid_post.9"}, "/hook", "layers 0 to 3"),
        ({"model": "elsewhere"}, "/model", "elsewhere"),
    ]:
        with subtests.test(change=change):
            body = {"name": "res-1", "path": "sae", "model": "demo"} | change
            body = {name: value for name, value in body.items() if value is not None}
            answer = service.client.post("/v1/saes", json=body)
            problem(answer, 422, says=says, **({"pointer": pointer} if pointer else {}))
    assert service.client.get("/v1/saes").json()["data"] == []
    assert service.client.get("/v1/files").json()["data"] == []


def test_python_and_the_command_line(service: Service, url: str, run: Run) -> None:
    write_sae(folder_of(service), d_in=8)
    with Client(url) as client:
        made = client.saes.create("res-1", path="sae", metadata={"by": "us"})
        assert client.saes.get("res-1") == made
        assert [one.id for one in client.saes.list(name="res-1")] == [made.id]
        code, out, err = run("saes", "create", "two", "--path", "sae", "--hook", "resid_post.2")
        assert (code, err) == (0, "") and "resid_post.2" in out
        code, out, _ = run("saes", "ls")
        assert code == 0 and "res-1" in out and "standard" in out
        assert run("saes", "show", "two", "--format", "json")[0] == 0
        assert "Delete 1 SAE? Without a terminal, use --yes" in run("saes", "rm", "two")[2]
        assert run("saes", "rm", "--yes", "two")[0] == 0
        assert client.saes.delete(made.id).deleted
        assert list(client.saes.list()) == []


def test_captures_name_saes_and_keep_them(service: Service, problem: Problem) -> None:
    """Jobs, chats and batches are stored with full ids; hooks of a job name its latents."""
    service.load_model()
    made = store(service, model="demo")
    capture = {"hooks": ["resid_post.0"], "saes": [{"sae": "res-1", "top": 8}]}
    job_id = service.submit(capture=capture)
    shown = service.client.get(f"/v1/jobs/{job_id}").json()
    assert hooks_of(service, job_id) == ["resid_post.0", "sae:res-1"]
    assert shown["spec"]["capture"]["saes"] == [{"sae": made["id"], "hook": None, "top": 8}]
    problem(service.client.delete("/v1/saes/res-1"), 409, "conflict", says=job_id)
    service.client.post(f"/v1/jobs/{job_id}/cancel")
    alone = service.submit(capture={"saes": [{"sae": made["id"][:10], "hook": "blocks.2.hook_mlp_out"}]})
    assert hooks_of(service, alone) == ["sae:res-1"]
    service.client.post(f"/v1/jobs/{alone}/cancel")
    assert service.client.delete("/v1/saes/res-1").json()["deleted"]


def test_a_capture_by_a_wrong_sae_is_refused_by_field(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model()
    service.load_model("other")
    write_sae(folder_of(service, "wide"), d_in=24)
    store(service, name="centred", center_rows=True)
    store(service, model="demo")
    store(service, name="free")
    store(service, name="wide", path="wide", hook="resid_post.1")
    ids = [one["id"] for one in service.client.get("/v1/saes").json()["data"]]
    whole, saes = "/capture", "/capture/saes/0"
    for capture, more, pointer, says in [
        ({"saes": [{"sae": "res-2"}]}, {}, f"{saes}/sae", "there is no SAE res-2. Did you mean 'res-1'?"),
        ({"saes": [{"sae": "sae_" + "0" * 32}]}, {}, f"{saes}/sae", "it was deleted, or is another owner's"),
        ({"saes": [{"sae": "sae_"}]}, {}, f"{saes}/sae", "there is no SAE sae_"),
        ({"saes": [{"sae": "no spaces"}]}, {}, f"{saes}/sae", "names no SAE"),
        (
            {"saes": [{"sae": "res-1"}]},
            {"model": "other"},
            f"{saes}/sae",
            "stored for the model demo, not other",
        ),
        ({"saes": [{"sae": "res-1", "hook": "resid_post.9"}]}, {}, f"{saes}/hook", "layers 0 to 3"),
        ({"saes": [{"sae": "centred", "hook": "mlp_in.1"}]}, {}, f"{saes}/hook", "takes centred rows"),
        ({"saes": [{"sae": "wide"}]}, {}, f"{saes}/hook", "takes rows of 24 numbers, resid_post.1 is 8 wide"),
        (
            {"saes": [{"sae": "res-1"}, {"sae": ids[2]}]},
            {},
            "/capture/saes/1/sae",
            "SAE res-1 is named twice",
        ),
        ({"saes": [{"sae": "res-1", "top": 0}]}, {}, f"{saes}/top", "greater than or equal to 1"),
        ({"saes": [{"sae": "res-1"}], "reduce": "mean"}, {}, whole, "latents are stored row by row"),
        ({"saes": [{"sae": "res-1"}], "stats": True}, {}, whole, "latents are stored row by row"),
    ]:
        with subtests.test(capture=capture):
            answer = service.client.post("/v1/jobs", json=capture_spec(capture=capture) | more)
            problem(answer, 422, pointer=pointer, says=says)


def test_an_estimate_has_latents_and_the_weights_of_saes(service: Service, problem: Problem) -> None:
    worker_id = service.load_model(kv_bytes_per_token=1024)
    store(service, model="demo")
    write_sae(folder_of(service, "large"), d_in=8, d_sae=5000)
    store(service, name="large", path="large")

    def estimate(*saes: str, run_bytes: int = 1 << 30) -> Any:
        with service.database.write() as session:
            numbers = {"run_bytes": run_bytes, "host_available_bytes": 1 << 30, "slots": 4}
            workers.heartbeat(session, worker_id, numbers)
        wanted = [{"sae": one, "top": 10} for one in saes]
        capture = {"hooks": ["resid_post.0"], "saes": wanted, "mode": "prefill"}
        body = capture_spec(capture=capture, inputs=[{"prompt": "x" * 40}])
        planned = service.client.post("/v1/estimate", json=body).json()
        return planned, service.client.post("/v1/jobs", json=body)

    plain, _ = estimate()
    one, _ = estimate("res-1")
    two, _ = estimate("res-1", "large")
    assert one["bytes_per_token"] - plain["bytes_per_token"] == 80
    assert two["bytes_per_token"] - plain["bytes_per_token"] == 160
    small = SaeConfig(architecture="standard", d_in=8, d_sae=24)
    size = plans.sae_bytes(small)
    assert size == 4 * (8 * 24 + 8 + 24 + 64 * 24)
    samples = plain["slots"]
    assert one["host"]["needed"] - plain["host"]["needed"] == size + samples * 64 * 80
    refused, answer = estimate("large", run_bytes=1 << 20)
    assert refused["fits"] is False
    problem(answer, 422, "insufficient_resources", says="main memory for a sample alone")


def test_interventions_name_latents(service: Service, problem: Problem, subtests: pytest.Subtests) -> None:
    service.load_model()
    made = store(service, model="demo")
    write_sae(folder_of(service, "normed"), d_in=8, normalize_activations="layer_norm")
    store(service, name="normed", path="normed")
    edit = {"hook": "resid_post.1", "op": "add", "sae": "res-1", "latent": 3, "coefficient": 2}
    conditions = [{"name": "a"}, {"name": "b", "interventions": [edit | {"latent": 23}]}]
    job_id = service.submit(interventions=[edit], conditions=conditions)
    spec = service.client.get(f"/v1/jobs/{job_id}").json()["spec"]
    assert spec["interventions"][0]["sae"] == made["id"] and spec["interventions"][0]["latent"] == 3
    assert spec["conditions"][1]["interventions"][0]["sae"] == made["id"]
    problem(service.client.delete("/v1/saes/res-1"), 409, "conflict", says=job_id)
    chat = {"model": "demo", "messages": [{"role": "user", "content": "a"}], "interventions": [edit]}
    asked = KINDS["chat"].resolve(service.services, ChatCompletionRequest.model_validate(chat))
    assert asked.interventions[0].sae == made["id"]
    for change, pointer, says in [
        ({"latent": 24}, "/latent", "SAE res-1 has latents 0 to 23"),
        ({"latent": None}, "", "sae and latent belong together"),
        ({"sae": None}, "", "exactly one of vector, vector_id, from and sae"),
        ({"sae": "res-2"}, "/sae", "there is no SAE res-2"),
        ({"sae": "normed"}, "/sae", "normalises each row (layer_norm)"),
        ({"vector": [1.0] * 8}, "", "exactly one of"),
        ({"hook": "model.layers.0.mlp.up_proj.output"}, "/sae", "8 numbers"),
        ({"op": "scale", "latent": 1}, "", "scale takes no vector"),
    ]:
        with subtests.test(change=change):
            body = {name: value for name, value in (edit | change).items() if value is not None}
            answer = service.client.post("/v1/jobs", json=capture_spec(interventions=[body]))
            where = {"pointer": f"/interventions/0{pointer}"} if pointer else {}
            problem(answer, 422, says=says, **where)
