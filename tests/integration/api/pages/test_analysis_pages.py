"""Analyses as pages: the list, results with charts, the form, roles."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.contract.specs import ANALYSIS_KINDS
from storage.index import events
from storage.sessions.writer import TensorRows
from storage.tables.models import SampleRow
from tests.integration.api.conftest import Keyed, Service
from tests.integration.api.test_analysis_jobs import Analyst, everywhere
from tests.integration.api.test_probe_jobs import PROBLEMS, record

pytestmark = pytest.mark.integration

HTML = {"Accept": "text/html", "Origin": "http://127.0.0.1:8420"}
HOSTILE = "<script>alert(1)</script>\"'>\u202e"


@pytest.fixture
def analyst(service: Service, tmp_path: Path) -> Analyst:
    service.load_model()
    return Analyst(service, tmp_path)


def page(service: Service, path: str) -> str:
    answer = service.client.get(path, headers=HTML)
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def test_empty_states(service: Service) -> None:
    assert "No analysis was started yet." in page(service, "/analyses")
    assert "No analysis matches these filters." in page(service, "/analyses?kind=probe")


def test_a_probe_has_curves_tables_and_downloads(analyst: Analyst) -> None:
    source = record(analyst)
    job_id = analyst.submit(
        source, kind="probe", points=["mlp_in"], rows="all", resamples=20, shuffles=1, store_as="right"
    )
    waiting = page(analyst.service, f"/analyses/{job_id}")
    assert "Waiting for an analysis worker" in waiting
    assert f'data-live="/live?job={job_id}"' in waiting
    analyst.work()
    shown = page(analyst.service, f"/analyses/{job_id}")
    assert "AUROC of mlp_in" in shown
    assert "probe, 2: 1.0" in shown or "probe, 2: 1<" in shown
    assert "bag of words" in shown
    assert shown.count('class="whisker"') >= 4
    assert 'href="/jobs/vec_' not in shown
    for name, kind in (("probes.csv", b"hook,"), ("probes.png", b"\x89PNG"), ("probes.svg", b"<?xml")):
        (address,) = re.findall(rf'href="(/v1/files/\S+/content)"[^>]*>{name}<', shown)
        assert analyst.client.get(address).content.startswith(kind)
    assert f'href="/v1/jobs/{job_id}/results" download' in shown
    listed = page(analyst.service, "/analyses?kind=probe&status=completed")
    assert f'href="/analyses/{job_id}"' in listed
    assert f'href="/jobs/{source}"' in listed
    assert job_id not in page(analyst.service, "/analyses?kind=compare")
    assert source not in page(analyst.service, f"/analyses?after={job_id}&order=asc")


def test_a_comparison_and_outliers_have_their_charts(analyst: Analyst) -> None:
    first, second = record(analyst), record(analyst, seed=1, shift=3.0)
    compared = analyst.submit(
        first, second, kind="compare", points=["mlp_in"], rows="all", permutations=99, top=1
    )
    planted = analyst.capture(everywhere)
    outliers = analyst.submit(planted, layer_share=0.5, position_share=0.3)
    analyst.work()
    shown = page(analyst.service, f"/analyses/{compared}")
    assert "Similarity at mlp_in" in shown
    assert "Features with the largest effects" in shown
    assert f">{PROBLEMS}</td>" in shown
    shown = page(analyst.service, f"/analyses/{outliers}")
    assert "Outlier features by layer: attn_in" in shown
    assert shown.count('class="cell-set"') == 4
    assert "feature 5, layer 3" in shown
    assert re.search(r'href="/sessions/ses_[0-9a-f]{32}"', shown)


def test_an_analysis_in_progress_shows_the_sessions_it_has_read(analyst: Analyst) -> None:
    job_id = analyst.submit(analyst.capture(everywhere))
    analyst.service.claim(job_id)
    with analyst.service.database.write() as session:
        events.append(session, job_id, "analysis.progress", {"sessions": 2, "of": 3})
    assert "2 / 3 sessions read" in page(analyst.service, f"/analyses/{job_id}")


def test_the_form_starts_an_analysis(analyst: Analyst) -> None:
    source = analyst.capture(everywhere)
    job = page(analyst.service, f"/jobs/{source}")
    for kind in ANALYSIS_KINDS:
        address = f"/analyses/new?kind={kind}&job={source}"
        assert address.replace("&", "&amp;") in job
        assert 'value="attn_in"' in page(analyst.service, address)
    fields = {"kind": "outliers", "jobs": f" {source} ", "points": ["attn_in"], "layers": "0, 1", "tags": "a"}
    shown = analyst.client.post("/analyses/estimate", data=fields, headers=HTML).text
    assert "it reads 3 sessions" in shown
    answer = analyst.client.post("/analyses", data=fields, headers=HTML)
    assert answer.status_code == 303
    job_id = answer.headers["location"].removeprefix("/jobs/")
    led = analyst.client.get(f"/jobs/{job_id}", headers=HTML)
    assert (led.status_code, led.headers["location"]) == (303, f"/analyses/{job_id}")
    spec = analyst.client.get(f"/v1/jobs/{job_id}").json()["spec"]
    assert (spec["points"], spec["layers"], spec["tags"]) == (["attn_in"], [0, 1], ["a"])
    back = analyst.client.get(f"/analyses/{source}", headers=HTML)
    assert (back.status_code, back.headers["location"]) == (303, f"/jobs/{source}")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "probe", "jobs": ""}, "jobs"),
        ({"kind": "probe", "jobs": "job_" + "0" * 32}, "there is no job"),
        ({"kind": HOSTILE, "jobs": "x"}, "kind"),
        ({"layers": "one"}, "is not all"),
        ({"spec": "{"}, "not JSON"),
        ({"spec": "[]"}, "not a JSON object"),
    ],
)
def test_faults_of_the_form_are_said(service: Service, fields: dict[str, Any], says: str) -> None:
    shown = service.client.post("/analyses/estimate", data=fields, headers=HTML)
    assert shown.status_code == 200
    assert says in shown.text
    assert "<script>" not in shown.text
    answer = service.client.post("/analyses", data=fields, headers=HTML)
    assert 400 <= answer.status_code < 500
    assert "text/html" in answer.headers["content-type"]


def test_hostile_results_stay_texts(analyst: Analyst) -> None:
    job_id = analyst.submit(analyst.capture(everywhere), tags=["<b>"])
    analyst.work()
    with analyst.service.database.write() as session:
        (sample,) = session.query(SampleRow).filter_by(job_id=job_id)
        sample.completion = json.dumps(
            {
                "kind": "new",
                "a": HOSTILE,
                "hooks": {"mlp_in.0": {"x": 1}, "mlp_in.1": {"x": 2, "<b>": "<b>"}},
                "deep": {"<b>": {"<b>": {"<b>": [[1]]}}},
                "list": [{"<b>": "<b>"}],
            }
        )
    for path in (f"/analyses/{job_id}", "/analyses", f"/analyses/new?kind=probe&job={HOSTILE}"):
        answer = analyst.client.get(path, headers=HTML)
        assert "<script>" not in answer.text
        assert "<b>" not in answer.text


def test_roles_and_owners(keyed: Keyed) -> None:
    reader = {**HTML, **keyed.headers(keyed.make_key("read", owner="alice"))}
    writer = {**HTML, **keyed.headers(keyed.make_key("submit", owner="alice"))}
    assert "/analyses/new" not in keyed.client.get("/analyses", headers=reader).text
    assert "/analyses/new" in keyed.client.get("/analyses", headers=writer).text
    assert keyed.client.get("/analyses/new", headers=reader).status_code == 403
    assert keyed.client.post("/analyses", data={"spec": "{}"}, headers=reader).status_code == 403


def test_an_analysis_of_another_owner_is_not_shown(keyed: Keyed) -> None:
    keyed.load_model()
    alice = {**HTML, **keyed.headers(keyed.make_key("submit", owner="alice"))}
    bob = {**HTML, **keyed.headers(keyed.make_key("submit", owner="bob"))}
    capture = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "a"}], "capture": {"layers": "all"}}
    source = keyed.client.post("/v1/jobs", json=capture, headers=alice).json()["id"]
    rows = np.zeros((6, 8), np.float32).tobytes()
    tensors = {
        "resid_post.0": TensorRows(name="resid_post.0", dtype="F32", first_row=0, shape=(6, 8), data=rows)
    }
    keyed.finish(keyed.claim(source)[0], tensors=tensors)
    spec = {"kind": "outliers", "jobs": [source], "points": ["resid_post"]}
    job_id = keyed.client.post("/v1/jobs", json=spec, headers=alice).json()["id"]
    assert job_id in keyed.client.get("/analyses", headers=alice).text
    assert job_id not in keyed.client.get("/analyses", headers=bob).text
    for path in (f"/analyses/{job_id}", f"/analyses/new?job={source}"):
        assert keyed.client.get(path, headers=alice).status_code == 200
        assert keyed.client.get(path, headers=bob).status_code == 404
