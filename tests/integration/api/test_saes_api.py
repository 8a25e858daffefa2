"""/v1/saes: SAEs are read once, kept in the store, and named by captures."""

from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from storage.artifacts.checked_files import digest_of
from storage.upkeep import reaper
from tests.integration.api.conftest import Problem, Service
from tests.support.command_line import Run
from tests.support.saes import write_sae


def folder_of(service: Service, name: str = "sae") -> Path:
    return Path(service.services.settings.data_roots[0]) / name


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
        ({"hook": "resid_post.9"}, "/hooks", "layers 0 to 3"),
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
        assert run("saes", "rm", "two")[0] == 0
        assert client.saes.delete(made.id).deleted
        assert list(client.saes.list()) == []
