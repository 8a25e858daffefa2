"""The dashboard in a real browser: live updates, forms, sign-in, accessibility.

A machine without Chromium or playwright skips these tests, CI too; CONTRIBUTING.md says how to run them.
"""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from actograph.contract.resources import Score
from storage.sessions.writer import TensorRows
from storage.tables.models import SampleRow

if TYPE_CHECKING:
    from tests.integration.api.conftest import Keyed, Service

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH"),
]

MILLISECONDS = 120_000
SCORES = {"exact_match,none": Score(value=1.0, answer="<script>alert(1)</script>")}
SERIOUS = """axe.run().then(found => found.violations
  .filter(one => ['serious', 'critical'].includes(one.impact))
  .map(one => `${one.id}: ${one.nodes[0].html}`))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        one = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


class Server:
    """An application on one socket; it can be stopped and started again."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen()
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(self._app, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()
        self._listener = listener

    def stop(self) -> None:
        self._app.state.services.stopping.set()  # as a signal does
        self._server.should_exit = True
        self._thread.join(timeout=60)
        self._listener.close()
        self._app.state.services.stopping.clear()


class Tab:
    """A tab that notes errors of the console and requests to other hosts."""

    def __init__(self, browser: Any, url: str, width: int = 1000) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800})
        self.page = self.context.new_page()
        self.page.set_default_timeout(MILLISECONDS)
        self.trouble: list[str] = []
        self.page.on("console", lambda said: self.trouble.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("request", lambda asked: None if asked.url.startswith(url) else self._note(asked.url))

    def _note(self, text: str) -> None:
        self.trouble.append(text)


@pytest.fixture
def served(service: "Service") -> Iterator[Server]:
    server = Server(service.app)
    yield server
    server.stop()


def finished_job(service: "Service") -> tuple[str, str]:
    """A job with one of two samples completed, and that sample."""
    job_id = service.submit(
        tags=["<b>"], inputs=[{"prompt": "<img src=x onerror=alert(1)>"}, {"prompt": "b"}]
    )
    lease = service.claim(job_id)[0]
    service.finish(lease, scores=SCORES)
    return job_id, lease.id


def analysed(service: "Service") -> str:
    """A finished probe of two hooks."""
    job_id = service.submit(capture={"points": ["resid_post"], "layers": [0, 1]})
    rows = {
        name: TensorRows(name=name, dtype="F32", first_row=0, shape=(6, 8), data=bytes(192))
        for name in ("resid_post.0", "resid_post.1")
    }
    service.finish(service.claim(job_id)[0], tensors=rows)
    answer = service.client.post("/v1/jobs", json={"kind": "probe", "jobs": [job_id]})
    assert answer.status_code == 202, answer.text
    probe = str(answer.json()["id"])
    service.finish(service.claim(probe)[0])
    score = {"auroc": 0.75, "auroc_interval": [0.5, 0.9], "accuracy": 0.7, "accuracy_interval": [0.6, 0.8]}
    found = {name: score | {"baselines": {"length": score}, "rows": 6, "c": [1.0]} for name in rows}
    with service.database.write() as session:
        (sample,) = session.query(SampleRow).filter_by(job_id=probe)
        sample.completion = json.dumps({"kind": "probe", "label": "<b>", "hooks": found})
    return probe


def test_rows_of_a_list_are_chosen_and_deleted(service: "Service", served: Server, browser: Any) -> None:
    service.load_model()
    analysed(service)
    tab = Tab(browser, served.url)
    tab.page.goto(f"{served.url}/sessions")
    tab.page.get_by_label("Choose all sessions of this page").check()
    assert tab.page.locator("input[name=ids]:checked").count() == 1
    tab.page.get_by_role("button", name="Delete …").click()
    tab.page.get_by_role("heading", name="Delete 1 session?").wait_for()
    tab.page.get_by_role("button", name="Delete for good").click()
    tab.page.get_by_text("No session matches.").wait_for()
    assert tab.trouble == []
    tab.context.close()


def test_pages_are_quiet_fit_a_phone_and_are_accessible(
    service: "Service", served: Server, browser: Any
) -> None:
    service.load_model()
    job_id, sample_id = finished_job(service)
    tab = Tab(browser, served.url, width=375)
    paths = ["/", "/jobs", f"/jobs/{job_id}", f"/jobs/{job_id}/samples/{sample_id}", "/submit", "/sessions"]
    paths += ["/analyses", f"/analyses/{analysed(service)}", f"/analyses/new?job={job_id}"]
    for path in (*paths, "/models", "/workers", "/storage", "/keys"):
        tab.page.goto(served.url + path)
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        if find_spec("axe_playwright_python") is not None:
            tab.page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
            assert tab.page.evaluate(SERIOUS) == [], path
    assert tab.trouble == []
    tab.context.close()


def test_a_page_moves_with_its_job_and_after_a_restart(
    service: "Service", served: Server, browser: Any
) -> None:
    job_id, _ = finished_job(service)
    tab = Tab(browser, served.url)
    tab.page.goto(f"{served.url}/jobs/{job_id}")
    tab.page.get_by_text("1 / 2", exact=True).wait_for()
    tab.page.wait_for_function("() => shown !== ''")  # the stream has begun
    service.finish(service.claim(job_id)[0], scores=SCORES)
    tab.page.get_by_text("2 / 2", exact=True).wait_for()
    assert tab.trouble == []
    tab.page.goto(f"{served.url}/jobs")
    tab.page.wait_for_function("() => shown !== ''")
    served.stop()
    tab.page.get_by_text("connecting again").wait_for()
    second = service.submit(tags=["after"])
    served.start()
    tab.page.locator(f"a[href='/jobs/{second}']").wait_for()
    tab.page.get_by_text("connecting again").wait_for(state="hidden")
    tab.context.close()


def test_a_job_is_submitted_and_cancelled_by_hand(service: "Service", served: Server, browser: Any) -> None:
    service.load_model()
    tab = Tab(browser, served.url)
    tab.page.goto(f"{served.url}/submit")
    tab.page.get_by_label("Prompts").fill("<script>alert(1)</script>\ntwo")
    tab.page.get_by_label("mlp_in").check()
    tab.page.locator("#estimate").get_by_text("2 samples").wait_for()
    tab.page.get_by_role("button", name="Submit").click()
    tab.page.wait_for_url("**/jobs/job_*")
    tab.page.get_by_text("Cancel", exact=True).click()
    tab.page.get_by_role("button", name="Cancel the job").click()
    tab.page.locator("h1 + .status.cancelled").wait_for()
    assert tab.trouble == []
    tab.context.close()


def test_a_browser_signs_in_and_out(keyed: "Keyed", browser: Any) -> None:
    key = keyed.make_key("read")
    server = Server(keyed.app)
    tab = Tab(browser, server.url)
    tab.page.goto(f"{server.url}/jobs?tag=a")
    tab.page.get_by_label("API key").fill(key)
    tab.page.get_by_role("button", name="Sign in").click()
    tab.page.wait_for_url("**/jobs?tag=a")
    assert tab.page.get_by_role("link", name="Keys").count() == 0
    assert tab.page.evaluate("document.cookie") == ""
    tab.page.get_by_role("button", name="Sign out").click()
    tab.page.wait_for_url("**/sign-in")
    assert tab.trouble == []
    tab.context.close()
    server.stop()
