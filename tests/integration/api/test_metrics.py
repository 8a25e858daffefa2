"""GET /metrics: every metric is there, says what the index says, and is documented."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from actograph.settings import Settings
from api import metrics
from api.app import create_app
from storage.index import counters
from storage.index.counters import Counter
from tests.integration.api.conftest import Service

REPO = Path(__file__).resolve().parents[3]
#: what names metrics
PLACES = ("docs/operate/monitoring.md", "deploy/grafana.json", "deploy/alerts.yml")


def read(client: TestClient) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_the_queue_and_what_was_counted(service: Service) -> None:
    waiting = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}])
    (lease,) = service.claim(waiting, 1)
    service.submit()
    with service.services.database.write() as session:
        counters.add(session, {Counter("samples", "capture", "failed"): 2})
        counters.add(session, {Counter("samples", "capture", "failed"): 3})
    found = read(service.client)
    assert found["actograph_jobs"][("status", "queued"),] == 1
    assert found["actograph_jobs"][("status", "in_progress"),] == 1
    assert found["actograph_open_samples"] == {(("status", "pending"),): 2, (("status", "leased"),): 1}
    assert found["actograph_samples_total"] == {(("kind", "capture"), ("status", "failed")): 5}
    assert found["actograph_database_up"][()] == found["actograph_broker_up"][()] == 1
    assert lease.id not in str(found) and waiting not in str(found)


def test_a_key_is_asked_for_unless_a_setting_says_otherwise(settings: Settings) -> None:
    keyed = settings.model_copy(update={"api_keys": ("secret",)})
    with TestClient(create_app(keyed)) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"Authorization": "Bearer secret"}).status_code == 200
    with TestClient(create_app(keyed.model_copy(update={"metrics_open": True}))) as client:
        assert client.get("/metrics").status_code == 200
        assert client.get("/v1/jobs").status_code == 401


def test_page_board_and_alerts_name_metrics_that_exist(service: Service) -> None:
    names = set(re.findall(r"^# TYPE (\w+) ", service.client.get("/metrics").text, re.MULTILINE))
    assert {f"{metrics.PREFIX}{name}_total" for name in metrics.COUNTERS} <= names
    for place in PLACES:
        named = set(re.findall(r"actograph_[a-z_]+", (REPO / place).read_text(encoding="utf-8")))
        assert named and named <= names | {"actograph_key"}, place
