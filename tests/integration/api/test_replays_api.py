"""Replays through the API: sessions are chosen and checked at submission, and shown with their sources."""

from typing import Any

import pytest
import sqlalchemy as sa

from actograph.client import Client
from actograph.contract.models import ModelIdentity, PinnedModel
from actograph.contract.resources import RowDifference, Score
from storage.jobs import jobs
from storage.tables.models import JobRow, SampleRow, SessionRow
from tests.integration.api.conftest import EMBED, MODEL, Keyed, Problem, Service
from tests.support.command_line import Run

PROMPTS = [{"prompt": "a", "label": "x", "tags": ["own"]}, {"prompt": "b", "label": "y"}]


def identity(**changes: Any) -> ModelIdentity:
    values = {"model": MODEL, "source": "here", "weights_sha256": "w", "dtype": "float32"}
    return ModelIdentity(**values | {"tokenizer_sha256": "t" * 64} | changes)


def recorded(service: Service, *, epochs: int = 1, **changes: Any) -> list[str]:
    """A finished capture job of two prompts: its id, and those of its sessions."""
    job_id = service.submit(inputs=PROMPTS, capture={"hooks": ["embed"]}, epochs=epochs)
    leases = service.claim(job_id, 2 * epochs)
    score = {"s": Score(value=1.0)}
    made = [service.finish(one, tensors=EMBED, correct=True, scores=score) for one in leases]
    found = identity(**changes)
    with service.database.write() as session:
        job = jobs.get(session, job_id)
        job.pinned, job.identity_sha256 = PinnedModel(identity=found).model_dump(mode="json"), found.sha256
        of_job = sa.update(SessionRow).where(SessionRow.job_id == job_id)
        session.execute(of_job.values(identity_sha256=found.sha256))
    return [job_id, *map(str, made)]


def replay(service: Service, **changes: Any) -> Any:
    return service.client.post("/v1/jobs", json={"kind": "replay"} | changes)


def test_sessions_are_chosen_at_submission(service: Service) -> None:
    service.load_model(identity=identity())
    job_id, first, second, *others = recorded(service, epochs=2)
    extra, *_ = recorded(service)
    body = {"sessions": {"jobs": [job_id, extra]}, "capture": {"points": ["resid_post"], "layers": [1]}}
    answer = replay(service, **body)
    assert answer.status_code == 202, answer.text
    found = answer.json()
    assert (found["model"], found["kind"], found["progress"]["total"]) == (MODEL, "replay", 6)
    assert found["identity_sha256"] == identity().sha256
    with service.database.read() as session:
        rows = session.scalars(
            sa.select(SampleRow).where(SampleRow.job_id == found["id"]).order_by(SampleRow.position)
        ).all()
        sources = [
            session.get(SampleRow, session.get(SessionRow, one.input["source_session"]).sample_id)
            for one in rows
        ]  # type: ignore[union-attr]
    assert [one.input["source_session"] for one in rows[:4]] == [first, second, *others]
    for row, source in zip(rows, sources, strict=True):
        assert source is not None
        assert row.input["label"] == source.input["label"] and row.seed == source.seed
        assert row.input["sample"] == {
            "sample_index": source.sample_index, "condition": source.condition, "epoch": source.epoch,
        }  # fmt: skip
    by_id = replay(service, **body | {"sessions": {"ids": [first, second[:20]]}}).json()
    assert by_id["progress"]["total"] == 2


def test_an_estimate_counts_the_stored_tokens(service: Service) -> None:
    service.load_model(identity=identity(), kv_bytes_per_token=16)
    job_id, *_ = recorded(service)
    body = {"kind": "replay", "sessions": {"jobs": [job_id]}, "capture": {"hooks": ["embed"]}}
    found = service.client.post("/v1/estimate", json=body).json()
    assert (found["samples"], found["prompt_tokens_source"], found["generated_tokens"]) == (2, "sessions", 0)
    assert (found["prompt_tokens_mean"], found["prompt_tokens_longest"]) == (7, 7)
    sizes = {}
    for positions in ("all", "prompt", "generated"):
        capture = {"hooks": ["embed"], "positions": positions, "features": {"first": 8}}
        sizes[positions] = service.client.post("/v1/estimate", json=body | {"capture": capture}).json()
    assert sizes["all"]["bytes_per_sample"] - sizes["prompt"]["bytes_per_sample"] == 3 * 32
    assert sizes["all"]["bytes_per_sample"] - sizes["generated"]["bytes_per_sample"] == 3 * 32


def test_what_cannot_be_replayed_is_refused_at_submission(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model(identity=identity())
    service.load_model("other", identity=identity(model="other", tokenizer_sha256="u" * 64))
    job_id, first, _ = recorded(service)
    queued = service.submit()
    another, *_ = recorded(service, weights_sha256="changed")
    analysis, *of_analysis = recorded(service)
    with service.database.write() as session:
        found = sa.update(SessionRow).where(SessionRow.id.in_(of_analysis))
        session.execute(found.values(prompt_tokens=0, generated_tokens=0))
    of_job = {"jobs": [job_id]}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"sessions": {"jobs": [queued]}}, "/sessions", "have stored no activations"),
        ({"sessions": of_job | {"correct": False}}, "/sessions", "drop or change a filter"),
        ({"sessions": {"jobs": ["job_" + "0" * 32]}}, "/sessions/jobs/0", "there is no job"),
        ({"sessions": {"ids": ["ses_" + "0" * 32]}}, "/sessions/ids/0", "there is no session"),
        ({"sessions": {}}, "/sessions", "neither is given"),
        ({"sessions": {"jobs": [analysis]}}, "/sessions", "the results of an analysis"),
        ({"sessions": {"ids": [first, of_analysis[1]]}}, "/sessions", "the results of an analysis"),
        ({"sessions": of_job, "model": "other"}, "/model", "other has another tokenizer (uuuuuuuuuuuu)"),
        ({"sessions": of_job, "capture": {"hooks": ["resid_post.9"]}}, "/capture/hooks", "layers 0 to 3"),
        ({"sessions": of_job, "capture": None}, "/capture", ""),
        ({"sessions": of_job, "epochs": 2}, "/epochs", ""),
        ({"sessions": of_job, "sampling": {"max_tokens": 3}}, "/sampling", ""),
        (
            {"sessions": of_job, "interventions": [{"hook": "embed", "op": "zero"}]},
            "/interventions",
            "",
        ),
        ({"sessions": of_job, "tolerance": -1}, "/tolerance", ""),
    ]
    for body, pointer, says in cases:
        with subtests.test(pointer=pointer, says=says):
            problem(replay(service, **body), 422, None, pointer, says=says)
            estimate = service.client.post("/v1/estimate", json={"kind": "replay"} | body)
            problem(estimate, 422, None, pointer, says=says)
    problem(replay(service, sessions={"jobs": [job_id, another]}), 422, "mixed_identities")


def test_the_default_is_the_very_model_of_the_sessions(service: Service) -> None:
    service.load_model(identity=identity(weights_sha256="later", tokenizer_sha256="u" * 64))
    service.load_model("other", identity=identity(model="other"))
    job_id, *_ = recorded(service)
    for changes, expected in (
        ({}, identity()),
        ({"model": MODEL}, identity()),
        ({"model": "other"}, identity(model="other")),
    ):
        found = replay(service, sessions={"jobs": [job_id]}, **changes).json()
        assert found["model_identity"] == expected.model_dump(), found


def test_sessions_of_others_are_not_there(keyed: Keyed, problem: Problem) -> None:
    alice, bob = (
        {"Authorization": f"Bearer {keyed.make_key('submit', owner=one)}"} for one in ("alice", "bob")
    )
    keyed.load_model()
    spec = {"kind": "capture", "model": MODEL, "inputs": PROMPTS, "capture": {"hooks": ["embed"]}}
    job_id = keyed.client.post("/v1/jobs", json=spec, headers=alice).json()["id"]
    made = [keyed.finish(one, tensors=EMBED) for one in keyed.claim(job_id, 2)]
    for query in ({"jobs": [job_id]}, {"ids": made}):
        body = {"kind": "replay", "sessions": query}
        problem(keyed.client.post("/v1/jobs", json=body, headers=bob), 422, says="there is no")
        assert keyed.client.post("/v1/jobs", json=body, headers=alice).status_code == 202


def test_a_replay_is_shown_with_its_source_and_its_differences(service: Service, url: str, run: Run) -> None:
    """In lists, in results, in the client, on the command line and on the pages."""
    service.load_model(identity=identity())
    job_id, first, second = recorded(service)
    with Client(url, "") as client:
        job = client.replay(job_id, capture="embed", tolerance=0.5, tags=["again"])
        assert job.spec["tolerance"] == 0.5 and job.spec["sessions"]["jobs"] == [job_id]
        assert client.replay(client.sessions.get(first), capture="embed").progress.total == 1
        assert client.replay({"jobs": [job_id], "limit": 1}, capture="embed").progress.total == 1
        compared = RowDifference(rows=6, difference=0.25, scale=2.0, tolerance=0.5)
        for lease, source, largest in zip(
            service.claim(job.id, 2), (first, second), (0.25, 0.125), strict=True
        ):
            made = service.finish(lease, tensors=EMBED)
            with service.database.write() as session:
                row = session.get(SessionRow, made)
                assert row is not None and lease.input["source_session"] == source
                row.source_session = source
                found = compared.model_copy(update={"difference": largest})
                row.hooks = {
                    name: info | {"compared": found.model_dump()} for name, info in row.hooks.items()
                }
        (shown,) = client.sessions.list(source_session=first)
        assert shown.source_session == first and shown.hooks["embed"].compared == compared
        assert client.sessions.stats(source_session=first[:16]).sessions == 1
        results = job.results()
        assert results.compared == {"embed": compared.model_copy(update={"rows": 12})}
    assert first in run("sessions", "ls", "--replays-of", first[:20], "--format", "json")[1]
    assert "0.25" in run("jobs", "show", job.id)[1]
    typed = ("--sessions", job_id, "--capture", "embed", "--tolerance", "0.1")
    submitted = run("jobs", "submit", *typed)[1].strip()
    with service.database.read() as session:
        row = session.get(JobRow, submitted)
        assert row is not None and (row.kind, row.total, row.spec["tolerance"]) == ("replay", 2, 0.1)
    page = service.client.get(f"/sessions/{shown.id}").text
    assert f'href="/sessions/{first}"' in page and "Compared with the source" in page
    assert f'href="/sessions?source={first}"' in service.client.get(f"/sessions/{first}").text
    listed = service.client.get(f"/sessions?source={first}").text
    assert shown.id in listed and second not in listed
    assert "Compared with the sources" in service.client.get(f"/jobs/{job.id}").text
