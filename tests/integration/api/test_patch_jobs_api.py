"""Patch jobs through the API: pairs are chosen and checked at submission, and their effects are shown."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from actograph.client import ApiError, Client
from actograph.contract.errors import PairSkipped
from actograph.contract.patching import ARRAYS_FILE, PAIR_FILE, PatchedPair
from storage.analyses import result_files
from storage.sessions.writer import TensorRows
from storage.tables.models import SampleRow, SessionRow
from tests.integration.api.conftest import Keyed, Problem, Service
from tests.integration.api.test_replays_api import identity
from tests.support import leasing
from tests.support.command_line import Run
from tests.support.samples import result

PROMPTS = [{"prompt": f"text {group}", "group": group} for group in ("a", "b")]
HOOKS = [f"{point}.{layer}" for point in ("resid_pre", "attn_out") for layer in range(4)]
ROWS = {name: TensorRows(name, "F32", (6, 8), 0, bytes(6 * 8 * 4)) for name in HOOKS}
BODY: dict[str, Any] = {"kind": "patch", "pair_by": "group", "points": ["resid_pre", "attn_out"], "answer": 5}


Sides = dict[str, Any]


def recorded(service: Service, *, hooks: dict[str, TensorRows] = ROWS) -> Sides:
    """The queries of two finished capture jobs, of the sides of two pairs."""
    found = {}
    for side in ("clean", "corrupted"):
        job_id = service.submit(inputs=PROMPTS, capture={"hooks": list(hooks)})
        for lease in service.claim(job_id, len(PROMPTS)):
            service.finish(lease, tensors=hooks)
        found[side] = {"jobs": [job_id]}
    return found


def patch(service: Service, **changes: Any) -> Any:
    return service.client.post("/v1/jobs", json=BODY | changes)


def test_pairs_are_chosen_at_submission(service: Service, subtests: pytest.Subtests) -> None:
    service.load_model(identity=identity())
    sides = recorded(service)
    answer = patch(service, **sides)
    assert answer.status_code == 202, answer.text
    found = answer.json()
    assert (found["kind"], found["model"], found["progress"]["total"]) == ("patch", "demo", 2)
    with service.database.read() as session:
        rows = session.scalars(sa.select(SampleRow).where(SampleRow.job_id == found["id"])).all()
        for row in rows:
            groups = []
            for side, query in sides.items():
                one = session.get(SessionRow, row.input[f"{side}_session"])
                assert one is not None and one.job_id == query["jobs"][0]
                groups.append(session.get(SampleRow, one.sample_id).input["group"])  # type: ignore[union-attr]
            assert groups[0] == groups[1]
    with subtests.test("by sample, where one side has fewer"):
        few = {"clean": sides["clean"] | {"limit": 1}}
        assert patch(service, **sides | few, pair_by="sample").json()["progress"]["total"] == 1


def test_an_estimate_counts_cells_and_tokens(service: Service, subtests: pytest.Subtests) -> None:
    service.load_model(identity=identity(), kv_bytes_per_token=16)
    sides = recorded(service)
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 2 * 4 * 3),
        ({"layers": [1]}, 2 * 3),
        ({"positions": [-1, "prompt[0:2]"], "points": ["attn_out"]}, 4 * 2),
    ]
    for changes, cells in cases:
        with subtests.test(changes=changes):
            found = service.client.post("/v1/estimate", json=BODY | sides | changes).json()
            assert (found["samples"], found["prompt_tokens_source"]) == (2, "sessions"), found
            assert (found["prompt_tokens_mean"], found["prompt_tokens_longest"]) == ((cells + 2) * 3, 3)
            assert found["generated_tokens"] == 0 and f" {cells} cells" in found["assumptions"][0]


def test_what_cannot_be_patched_is_refused_at_submission(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model(identity=identity())
    service.load_model("other", identity=identity(model="other"))
    both, few = recorded(service), recorded(service, hooks={"resid_pre.0": ROWS["resid_pre.0"]})
    (job_id,) = both["clean"]["jobs"]
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"clean": {"jobs": [job_id], "tag": "no"}}, "/clean", "drop or change a filter"),
        ({"corrupted": {"jobs": ["job_" + "0" * 32]}}, "/corrupted/jobs/0", "there is no job"),
        ({"corrupted": both["clean"]}, "/corrupted", "is clean and corrupted"),
        ({"clean": {"jobs": [job_id, *both["corrupted"]["jobs"]]}}, "/clean", "have the same group"),
        (
            {"corrupted": both["corrupted"] | {"sample_index": 1}, "clean": {"jobs": [job_id], "limit": 1}},
            "/pair_by",
            "set pair_by",
        ),
        ({"pair_by": "column:topic"}, "/pair_by", "has no column topic"),
        ({"pair_by": "length"}, "/pair_by", "is no group"),
        ({"model": "other"}, "/model", "mean nothing to other"),
        ({"points": ["mlp_out"]}, "/points", "or add them to sessions that exist: client.replay("),
        (few, "/points", "store no whole rows of "),
        ({"points": ["resid_pre", "resid_pre"]}, "/points", "twice"),
        ({"points": ["router_logits"]}, "/points", "not changed"),
        ({"points": ["logits"]}, "/points/0", ""),
        ({"layers": [9]}, "/layers", "layers 0 to 3"),
        ({"heads": "all"}, "/heads", "resid_pre has no heads"),
        ({"positions": []}, "/positions", ""),
        ({"positions": ["answer[0]"]}, "/positions/0", ""),
        ({"against": 3}, "/against", "logit_difference"),
        ({"metric": "probability"}, "/metric", ""),
        ({"capture": {"hooks": ["embed"]}}, "/capture", ""),
        ({"interventions": []}, "/interventions", ""),
    ]
    for changes, pointer, says in cases:
        with subtests.test(changes=changes):
            problem(patch(service, **both | changes), 422, None, pointer, says=says)
            problem(
                service.client.post("/v1/estimate", json=BODY | both | changes), 422, None, pointer, says=says
            )


def test_a_readout_is_the_metric(service: Service, problem: Problem, subtests: pytest.Subtests) -> None:
    """Its vector is named like a capture's, kept by its id, and compared with the model."""
    service.load_model(identity=identity())
    new = {"name": "v", "hook": "resid_post.2", "vector": [1.0] * 8}
    vector = service.client.post("/v1/vectors", json=new).json()["id"]
    service.client.post("/v1/vectors", json=new | {"name": "narrow", "vector": [1.0] * 3})
    sides = recorded(service) | {"answer": None}
    made = patch(service, **sides, metric={"readout": {"vector": "v"}})
    assert made.status_code == 202, made.text
    found = made.json()["spec"]["metric"]
    assert (found["readout"]["vector"], found["readout"]["name"], found["position"]) == (vector, "v", -1)
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"readout": {"vector": "w"}}, "/metric/readout/vector", "there is no vector w"),
        ({"readout": {"vector": vector, "hook": "resid_post.9"}}, "/metric/readout/hook", "layers 0 to 3"),
        ({"readout": {"vector": "narrow"}}, "/metric/readout/hook", "wide"),
        ({"readout": {"vector": vector, "stop_above": 1.0}}, "/metric", "nothing is generated"),
        ({"readout": {}}, "/metric/readout/vector", ""),
    ]
    for metric, pointer, says in cases:
        with subtests.test(metric=metric):
            problem(patch(service, **sides, metric=metric), 422, None, pointer, says=says)
    problem(
        patch(service, **sides | {"answer": 5}, metric={"readout": {"vector": vector}}), 422, None, "/answer",
        says="a readout needs no answer",
    )  # fmt: skip


def finished(service: Service, job_id: str) -> list[PatchedPair]:
    """The pairs of a job as a worker stores them: the first restores at layer 0, position 2 alone."""
    made = []
    for number, lease in enumerate(service.claim(job_id, 2)):
        pair = PatchedPair(
            clean_session=lease.input["clean_session"], corrupted_session=lease.input["corrupted_session"],
            sample_index=lease.sample_index, prompt_tokens=3, answer=5, answer_text=" yes", clean=-1.0,
            corrupted=-3.0, is_defined=True, points=["resid_pre", "attn_out"], layers=[0, 1],
            positions=["0", "1", "2"],
        )  # fmt: skip
        metric = np.full((2, 2, 3), -3.0)
        metric[0, 0, 2] = -1.0 - number
        metric[1, 1, 0] = np.nan
        files = [
            (PAIR_FILE, pair.model_dump_json().encode()),
            (ARRAYS_FILE, result_files.npz({"metric": metric})),
        ]
        new = result_files.store(service.services.store, lease, files)
        done = result(
            prompt="clean a", completion="", finish_reason="stop", prompt_tokens=3, generated_tokens=0,
            scores={}, session_id=new.id,
        )  # fmt: skip
        with service.database.write() as session:
            leasing.complete(session, lease, done, new)
        made.append(pair)
    return made


def test_effects_are_shown_everywhere(service: Service, url: str, run: Run, tmp_path: Path) -> None:
    """In the client with arrays, on the command line, and on the page with figures."""
    service.load_model(identity=identity())
    both = recorded(service)
    with Client(url, "") as client:
        job = client.patch(
            both["clean"], both["corrupted"], pair_by="group", points="resid_pre,attn_out", answer=5
        )
        with pytest.raises(ApiError, match="no pair has a result"):
            job.patching()
        with pytest.raises(ApiError, match="only patch jobs"):
            client.jobs.get(both["clean"]["jobs"][0]).patching()
        pairs = finished(service, job.id)
        found = job.patching()
        assert [one.model_dump() for one in found.result.pairs] == [one.model_dump() for one in pairs]
        assert found["metric"].shape == found["effect"].shape == (2, 2, 2, 3)
        assert found["clean"].tolist() == [-1.0, -1.0] and found["corrupted"].tolist() == [-3.0, -3.0]
        assert found["effect"][:, 0, 0, 2].tolist() == [1.0, 0.5]
        assert found["mean"][0, 0, 2] == 0.75 and found["pairs"][0, 0, 2] == 2
        # by the t distribution with one degree of freedom: 12.706 standard errors
        assert found["high"][0, 0, 2] - 0.75 == pytest.approx(12.7062 * 0.25, rel=1e-4)
        assert found["mean"][0, 1].tolist() == [0.0] * 3 and math.isnan(found["mean"][1, 1, 0])
        assert len(found.result.cells) == 11
        best = found.result.ranked()[0]
        assert (best.point, best.layer, best.position, best.effect) == ("resid_pre", 0, "2", 0.75)
        assert found.file("patch_resid_pre.png").startswith(b"\x89PNG")
        with pytest.raises(ApiError, match=r"patch_attn_out\.png"):
            found.file("patch_embed.png")
        exported = job.refresh().export(tmp_path / "exported")
        assert len(list(exported.folder.rglob("*.json"))) >= 2
        with pytest.raises(KeyError, match="there are metric"):
            found["nothing"]
    svg = service.client.get(f"/v1/jobs/{job.id}/patching/patch_resid_pre.svg")
    assert svg.headers["content-type"] == "image/svg+xml" and "n = 2 pairs" in svg.text
    assert "of ·yes" in svg.text and "clean rows into the corrupted run" in svg.text
    page = service.client.get(f"/jobs/{job.id}").text
    assert f"/v1/jobs/{job.id}/patching/patch_attn_out.svg" in page and "0.75" in page
    assert "0.75" in run("jobs", "watch", job.id)[1]


def test_skipped_pairs_have_their_reasons(service: Service) -> None:
    service.load_model(identity=identity())
    job_id = patch(service, **recorded(service)).json()["id"]
    first, second = service.claim(job_id, 2)
    with service.database.write() as session:
        leasing.fail(session, second, PairSkipped("the prompts have 3 and 4 tokens"))
    missing = service.client.get(f"/v1/jobs/{job_id}/patching")
    assert missing.status_code == 409 and "3 and 4 tokens" in missing.text
    with service.database.write() as session:
        leasing.leases.give_back(session, [first])
    finished(service, job_id)
    found = service.client.get(f"/v1/jobs/{job_id}/patching").json()
    assert (len(found["pairs"]), found["skipped_pairs"]) == (1, 1)
    assert found["skipped"][0]["reason"] == "the prompts have 3 and 4 tokens"
    assert found["cells"][2]["effect"] == 1.0 and found["cells"][2]["low"] is None


def test_pairs_of_others_are_not_there(keyed: Keyed, problem: Problem) -> None:
    alice, bob = (
        {"Authorization": f"Bearer {keyed.make_key('submit', owner=one)}"} for one in ("alice", "bob")
    )
    keyed.load_model(identity=identity())
    spec = {"kind": "capture", "model": "demo", "inputs": PROMPTS, "capture": {"hooks": HOOKS}}
    sides = {}
    for side in ("clean", "corrupted"):
        job_id = keyed.client.post("/v1/jobs", json=spec, headers=alice).json()["id"]
        for lease in keyed.claim(job_id, 2):
            keyed.finish(lease, tensors=ROWS)
        sides[side] = {"jobs": [job_id]}
    body = BODY | sides
    problem(keyed.client.post("/v1/jobs", json=body, headers=bob), 422, says="there is no job")
    made = keyed.client.post("/v1/jobs", json=body, headers=alice).json()["id"]
    finished(keyed, made)
    for path in ("patching", "patching/patch.npz"):
        assert keyed.client.get(f"/v1/jobs/{made}/{path}", headers=alice).status_code == 200
        assert keyed.client.get(f"/v1/jobs/{made}/{path}", headers=bob).status_code == 404
