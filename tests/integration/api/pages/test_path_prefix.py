"""The page and the API behind a path prefix of a proxy, which may take it off or not."""

import re
from html import unescape

import pytest

from actograph.contract.resources import Score
from actograph.settings import Settings
from api.app import create_app
from api.browser import COOKIE
from api.pages.rendering import NAVIGATION
from tests.integration.api.conftest import EMBED, Keyed, Service, Start, capture_spec

pytestmark = pytest.mark.integration

PREFIX = "/user/me@lab/proxy/8420"
HTML = {"Accept": "text/html"}
#: attributes in which a browser finds addresses
_ADDRESS = re.compile(
    r"""\s(href|src|action|formaction|hx-get|hx-post|data-live|data-stream)=["'](.*?)["']"""
)


@pytest.fixture
def behind(start: Start, settings: Settings) -> Service:
    return start(settings.model_copy(update={"root_path": PREFIX}))


def test_every_link_of_every_page_stays_behind_the_prefix(behind: Service) -> None:
    """From the overview, all that can be reached by links; texts of users stay as they are."""
    evil = f'" href="/evil" <a href="/evil"> {PREFIX}'
    behind.load_model()
    job_id = behind.submit(
        tags=[evil], inputs=[{"prompt": evil}] * 2, conditions=[{"name": "a"}, {"name": "b"}],
        capture={"hooks": ["embed"]},
    )  # fmt: skip
    leases = behind.claim(job_id, count=4)
    for lease in leases:
        behind.finish(lease, tensors=EMBED, scores={"exact": Score(value=1.0, answer=evil)})
    seen, waiting = set[str](), [f"{PREFIX}/"]
    while waiting:
        link = waiting.pop()
        if link.partition("?")[0] in seen:
            continue
        seen.add(link.partition("?")[0])
        inner = link.removeprefix(PREFIX)
        answer = behind.client.get(link, headers=HTML)
        assert answer.status_code == 200, link
        if not inner.startswith("/v1/"):  # an answer may hold what is asked for with it
            taken_off = behind.client.get(inner, headers=HTML)
            assert taken_off.status_code == 200, "a proxy that takes the prefix off"
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        for attribute, value in _ADDRESS.findall(answer.text):
            if value and not value.startswith("#"):
                found = unescape(value).partition("#")[0]
                assert re.match(rf"{PREFIX}(/|$)|\?", found), (link, attribute, value)
                is_read = attribute in ("href", "src", "hx-get") and not found.startswith("?")
                waiting += [found] * is_read
    pages = {f"{PREFIX}{path}" for path, *_ in NAVIGATION} | {f"{PREFIX}/jobs/{job_id}"}
    pages |= {f"{PREFIX}/jobs/{job_id}/samples/{lease.id}" for lease in leases}
    pages |= {f"{PREFIX}/sessions/{lease.session_id}" for lease in leases}
    assert pages <= seen
    assert f"{PREFIX}/static/viewer-data.js" in seen


def test_the_api_answers_with_and_without_it(behind: Service) -> None:
    for prefix in ("", PREFIX):
        made = behind.client.post(f"{prefix}/v1/jobs", json=capture_spec())
        assert made.headers["location"] == f"{PREFIX}/v1/jobs/{made.json()['id']}"
        assert behind.client.get(f"{prefix}/livez").status_code == 200
        assert behind.client.get(f"{prefix}/openapi.json").json()["servers"] == [{"url": PREFIX}]
        assert f"url: '{PREFIX}/openapi.json'" in behind.client.get(f"{prefix}/docs").text
        for missing in (f"{prefix}x/livez", f"{prefix}/x/livez"):
            assert behind.client.get(missing).status_code == 404


def test_a_key_is_asked_for_and_kept_for_the_prefix_alone(start: Start, settings: Settings) -> None:
    changes = {"root_path": PREFIX, "api_keys": ("root-key",)}
    service = start(settings.model_copy(update=changes))
    client = Keyed(service.client, service.app).client
    client.follow_redirects = False
    origin = {"Origin": "http://127.0.0.1:8420"}
    refused = client.get(f"{PREFIX}/jobs?tag=a", headers=HTML)
    assert refused.headers["location"] == f"{PREFIX}/sign-in?next=%2Fjobs%3Ftag%3Da"
    assert client.get(f"{PREFIX}/v1/jobs").status_code == 401, "the prefix is no way around keys"
    assert client.get(f"{PREFIX}{PREFIX}/v1/jobs").status_code == 401
    signed = client.post(
        f"{PREFIX}/sign-in", data={"key": "root-key", "next": "/jobs?tag=a"}, headers=HTML | origin
    )
    assert signed.headers["location"] == f"{PREFIX}/jobs?tag=a"
    assert f"{COOKIE}=" in signed.headers["set-cookie"]
    assert f"; Path={PREFIX};" in signed.headers["set-cookie"]
    assert client.get(f"{PREFIX}/jobs", headers=HTML).status_code == 200
    out = client.post(f"{PREFIX}/sign-out", headers=HTML | origin)
    assert out.headers["location"] == f"{PREFIX}/sign-in"
    assert client.get(f"{PREFIX}/jobs", headers=HTML).status_code == 303


def test_a_prefix_is_a_path_that_the_service_has_not(subtests: pytest.Subtests) -> None:
    for value, prefix in {
        "": "",
        "/": "",
        "/a/b/": "/a/b",
        "/user/me@lab/proxy": "/user/me@lab/proxy",
    }.items():
        with subtests.test(value):
            assert Settings(root_path=value).root_path == prefix
    for value in (
        "a",
        "//a",
        "/a//b",
        "/a/../b",
        "/.",
        "/a b",
        '/a"',
        "/a?b",
        "/a%20",
        "http://x/a",
        "/a\\b",
    ):
        with subtests.test(value), pytest.raises(ValueError, match="is not a path such as"):
            Settings(root_path=value)
    for value in ("/v1", "/jobs", "/v1/jobs", "/static", "/livez"):
        with subtests.test(value), pytest.raises(ValueError, match=f"has a path {value}"):
            create_app(Settings(root_path=value))
