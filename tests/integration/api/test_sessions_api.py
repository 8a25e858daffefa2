"""/v1/activations/sessions on real session folders: search, row slices, downloads, deletion."""

import io
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from actograph import tensor_files
from storage.jobs import jobs
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Problem, Service, structure
from tests.support.stored_files import stored_path

BASE = "/v1/activations/sessions"
FULL = np.linspace(-1, 1, 48, dtype="<f4").reshape(6, 8)
#: the upper halves of float32 numbers
HALVES = (FULL[3:].view("<u4") >> 16).astype("<u2")
PATH = structure("demo").locations["resid_post.1"].replace(".1.", "[1].")
LOCATION = "model.layers.0.mlp.up_proj.output"


def tensors() -> dict[str, TensorRows]:
    """All rows of one hook, the generated rows of another in bfloat16, and a module's output."""
    return {
        "resid_post.1": TensorRows("resid_post.1", "F32", (6, 8), 0, FULL),
        "mlp_in.2": TensorRows("mlp_in.2", "BF16", (3, 8), 3, HALVES),
        LOCATION: TensorRows(LOCATION, "F16", (6, 2), 0, np.ones((6, 2), "<f2")),
    }


@pytest.fixture
def session_id(service: Service) -> str:
    job_id = service.submit(tags=["night"])
    made = service.finish(*service.claim(job_id), tensors=tensors(), correct=True)
    assert made is not None
    return made


def test_a_session_shows_what_it_holds(service: Service, session_id: str) -> None:
    session = service.client.get(f"{BASE}/{session_id}").json()
    assert session["object"] == "activation.session"
    assert (session["prompt_tokens"], session["generated_tokens"], session["rows"]) == (3, 4, 6)
    assert session["hooks"]["mlp_in.2"] == {
        "shape": [3, 8], "dtype": "BF16", "first_row": 3, "position_offset": None, "summary": None,
        "over": None, "compared": None, "latents": None, "nbytes": 48,
    }  # fmt: skip
    assert {f["name"] for f in session["files"]} == {"activations.safetensors", "manifest.json"}
    assert session["bytes"] == sum(f["bytes"] for f in session["files"])
    assert (session["tags"], session["correct"]) == (["night"], True)
    assert service.client.get(f"/v1/activations/session/{session_id}").json() == session


def test_sessions_are_searched_by_each_filter(service: Service, session_id: str) -> None:
    other_job = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}])
    others = {
        service.finish(lease, tensors=tensors(), correct=False) for lease in service.claim(other_job, 2)
    }
    created = service.client.get(f"{BASE}/{session_id}").json()

    def found(**params: Any) -> set[str]:
        answer = service.client.get(BASE, params=params)
        assert answer.status_code == 200, answer.text
        stats = service.client.get(f"{BASE}/stats", params=params).json()
        assert stats["sessions"] == len(answer.json()["data"])
        assert stats["bytes"] == sum(s["bytes"] for s in answer.json()["data"])
        return {s["id"] for s in answer.json()["data"]}

    everything = {session_id, *others}
    assert found() == everything
    assert found(id_prefix=session_id[:12]) == {session_id}
    assert found(id_prefix=session_id) == {session_id}
    assert found(id_prefix=session_id[:5]) == {one for one in everything if str(one)[:5] == session_id[:5]}
    assert found(job_id=other_job) == others
    assert found(model="demo") == found(model="example/demo-model") == everything
    assert found(model="nobody's") == set()
    assert found(sample_index=0, job_id=other_job) < others
    assert found(correct=True) == {session_id}
    assert found(correct="false") == others
    assert found(tag="night") == {session_id}
    assert found(condition="baseline") == set()
    assert (
        found(created_after=created["created_at"] - 1, created_before=created["created_at"] + 60)
        == everything
    )
    assert found(created_before=created["created_at"] - 1) == set()
    page = service.client.get(BASE, params={"limit": 2}).json()
    rest = service.client.get(BASE, params={"limit": 2, "after": page["last_id"]}).json()
    assert {s["id"] for s in page["data"] + rest["data"]} == everything
    assert rest["has_more"] is False


def read_safetensors(data: bytes) -> tuple[str, str, tuple[int, ...], bytes]:
    header = tensor_files.read_header(lambda at, n: data[at : at + n], len(data))
    ((name, entry),) = header.tensors.items()
    return name, entry.dtype, entry.shape, data[entry.start : entry.stop]


def test_rows_come_in_three_formats(service: Service, session_id: str, subtests: pytest.Subtests) -> None:
    for name, rows, (start, stop) in [
        ("resid_post.1", "2:4", (2, 4)),
        ("resid_post.1", None, (0, 6)),
        ("blocks.1.hook_resid_post", ":", (0, 6)),
        ("layers_output[1]", "5:", (5, 6)),
        ("layer_1_output", ":1", (0, 1)),
        ("layer_1_output", "3:3", (3, 3)),
    ]:
        with subtests.test(name=name, rows=rows):
            url = f"{BASE}/{session_id}/tensors/{name}"
            params = {} if rows is None else {"rows": rows}
            raw = service.client.get(url, params=params)
            assert raw.status_code == 200, raw.text
            whole = ("resid_post.1", "F32", (stop - start, 8), FULL[start:stop].tobytes())
            assert read_safetensors(raw.content) == whole
            npy = np.load(io.BytesIO(service.client.get(url, params={**params, "format": "npy"}).content))
            assert npy.dtype == np.dtype("<f4")
            np.testing.assert_array_equal(npy, FULL[start:stop])
            body = service.client.get(url, params={**params, "format": "json"}).json()
            assert (body["hook"], body["dtype"], body["first_row"]) == ("resid_post.1", "F32", start)
            assert body["shape"] == [stop - start, 8]
            np.testing.assert_array_equal(np.array(body["data"], "<f4").reshape(-1, 8), FULL[start:stop])


def test_rows_outside_the_tensor_are_refused(
    service: Service, session_id: str, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model()  # whose module paths are names too
    for rows in ["7:8", "0:7", "4:2", "6:7", "0:99999999999"]:
        with subtests.test(rows=rows):
            for hook in ("resid_post.1", PATH, LOCATION):
                answer = service.client.get(f"{BASE}/{session_id}/tensors/{hook}", params={"rows": rows})
                problem(answer, 416, "range_not_satisfiable", "/rows", says="0:6")


def test_json_is_limited_to_a_sane_size(
    service: Service, session_id: str, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.reading.tensor_slices.MAX_JSON_VALUES", 16)
    url = f"{BASE}/{session_id}/tensors/resid_post.1"
    problem(service.client.get(url, params={"format": "json"}), 422, pointer="/rows", says="2 rows at a time")
    assert service.client.get(url, params={"format": "json", "rows": "0:2"}).status_code == 200


def test_a_file_is_downloaded_whole_and_by_ranges(service: Service, session_id: str) -> None:
    url = f"{BASE}/{session_id}/files/activations.safetensors"
    whole = service.client.get(url)
    data = whole.content
    size = len(data)
    files = {f["name"]: f for f in service.client.get(f"{BASE}/{session_id}").json()["files"]}
    assert files["activations.safetensors"]["bytes"] == size
    assert sha256(data).hexdigest() == files["activations.safetensors"]["sha256"]
    assert whole.headers["etag"] == f'"{sha256(data).hexdigest()}"'
    assert whole.headers["accept-ranges"] == "bytes"
    for header, start, stop in (
        ("bytes=0-9", 0, 10), ("bytes=5-", 5, size), ("bytes=-7", size - 7, size),
        (f"bytes=10-{size * 9}", 10, size), (f"bytes=-{size * 9}", 0, size),
    ):  # fmt: skip
        part = service.client.get(url, headers={"Range": header})
        assert part.status_code == 206, header
        assert part.content == data[start:stop]
        assert part.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
        assert part.headers["content-length"] == str(stop - start)
    beyond = service.client.get(url, headers={"Range": f"bytes={size}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")


def test_entity_tags_spare_a_download_and_guard_a_resumed_one(service: Service, session_id: str) -> None:
    url = f"{BASE}/{session_id}/files/activations.safetensors"
    whole = service.client.get(url)
    etag = whole.headers["etag"]
    for value in (etag, "*"):
        again = service.client.get(url, headers={"If-None-Match": value})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert service.client.get(url, headers={"If-None-Match": '"x"'}).status_code == 200
    same = service.client.get(url, headers={"Range": "bytes=1-2", "If-Range": etag})
    assert (same.status_code, same.content) == (206, whole.content[1:3])
    changed = service.client.get(url, headers={"Range": "bytes=1-2", "If-Range": '"other"'})
    assert (changed.status_code, changed.content) == (200, whole.content)


def test_deleting_a_session_removes_row_and_files_once(
    service: Service, session_id: str, problem: Problem
) -> None:
    url = f"/v1/activations/session/{session_id}"  # the founding route
    sample = service.client.get(f"{BASE}/{session_id}").json()
    answer = service.client.delete(url)
    assert answer.json() == {"id": session_id, "object": "activation.session", "deleted": True}
    service.drain()
    assert not service.services.store.exists(f"sessions/{session_id}")
    problem(service.client.delete(url), 404, "not_found")
    for tail in ("", "/manifest", "/tensors/resid_post.1", "/files/manifest.json"):
        problem(service.client.get(f"{BASE}/{session_id}{tail}"), 404, "not_found")
    kept = service.client.get(f"/v1/jobs/{sample['job_id']}/samples/{sample['sample_id']}").json()
    assert (kept["status"], kept["session_id"]) == ("completed", None)


def test_bulk_deletion_counts_first_and_takes_only_what_fits(
    service: Service, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.sessions.changes.BATCH", 2)
    job_id = service.submit(inputs=[{"prompt": str(i)} for i in range(5)])
    others = [service.finish(lease, tensors=tensors()) for lease in service.claim(job_id, 5)]
    store = service.services.store
    size = service.client.get(f"{BASE}/stats", params={"job_id": job_id}).json()["bytes"]
    dry = service.client.delete(BASE, params={"job_id": job_id, "dry_run": True}).json()
    assert dry == {
        "object": "activation.session.deletion", "dry_run": True, "sessions": 5, "bytes": size, "pinned": 0,
    }  # fmt: skip
    assert all(store.exists(f"sessions/{i}") for i in others)
    done = service.client.delete(BASE, params={"job_id": job_id}).json()
    assert done == {**dry, "dry_run": False}
    assert service.client.get(f"{BASE}/stats", params={"job_id": job_id}).json()["sessions"] == 0
    assert service.client.get(f"{BASE}/{others[0]}").status_code == 404
    service.drain()
    assert not any(store.exists(f"sessions/{i}") for i in others)
    assert store.exists(f"sessions/{session_id}")
    again = service.client.delete(BASE, params={"job_id": job_id}).json()
    assert (again["sessions"], again["bytes"]) == (0, 0)
    with service.database.read() as session:
        assert jobs.get(session, job_id).completed == 5


def test_damage_in_the_store_is_said_and_not_served(
    service: Service, session_id: str, problem: Problem
) -> None:
    store = service.services.store
    manifest = stored_path(store, f"sessions/{session_id}/manifest.json")
    away = manifest.rename(manifest.with_suffix(".away"))
    problem(service.client.get(f"{BASE}/{session_id}/manifest"), 500, "store_damaged", says="manifest.json")
    away.rename(manifest)
    path = stored_path(store, f"sessions/{session_id}/activations.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    problem(service.client.get(f"{BASE}/{session_id}/files/{path.name}"), 500, "store_damaged")
    problem(service.client.get(f"{BASE}/{session_id}/tensors/{LOCATION}"), 500, "store_damaged")
