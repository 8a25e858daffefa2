"""The page in a real browser: submit, watch, open a sample, sign in, restart."""

import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from actograph.contract.resources import Score
from actograph.settings import Settings
from tests.integration.api.conftest import EMBED, ROOT_KEY, Keyed, Service, Start, capture_spec
from tests.support.servers.application import Application

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here"),
]

MILLISECONDS = 60_000
SERIOUS = """axe.run().then(found => found.violations
  .filter(one => ['serious', 'critical'].includes(one.impact))
  .map(one => `${one.id}: ${one.nodes[0].html}`))"""


class Tab:
    """A tab that notes errors of the console and requests to other sites."""

    def __init__(self, browser: Any, url: str) -> None:
        self.page = browser.new_context(viewport={"width": 1000, "height": 800}).new_page()
        self.page.set_default_timeout(MILLISECONDS)
        self.trouble: list[str] = []
        self.page.on("console", lambda said: self._note(said.text, said.type == "error"))
        self.page.on("pageerror", lambda error: self._note(str(error)))
        self.page.on("request", lambda request: self._note(request.url, not request.url.startswith(url)))

    def _note(self, text: str, is_trouble: bool = True) -> None:
        if is_trouble:
            self.trouble.append(text)

    def check(self) -> None:
        """Nothing is wrong so far, and no reader is shut out of this page."""
        self.page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
        assert self.page.evaluate(SERIOUS) == [], self.page.url
        self.page.set_viewport_size({"width": 375, "height": 800})
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), self.page.url
        self.page.set_viewport_size({"width": 1000, "height": 800})
        assert self.trouble == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def served(service: Service) -> Iterator[Application]:
    application = Application(service.app)
    yield application
    application.stop()


def test_submit_watch_open_a_sample(service: Service, served: Application, browser: Any) -> None:
    service.load_model()
    tab = Tab(browser, served.url)
    page = tab.page
    page.goto(f"{served.url}/")
    tab.check()
    page.get_by_role("link", name="Submit").click()
    page.get_by_label("Kind").select_option("capture")
    page.get_by_label("Prompts").fill("<img src=x onerror=alert(1)>\ntwo")
    page.get_by_role("textbox", name="Capture").fill("embed")
    page.get_by_label("Conditions").fill('[{"name": "a"}, {"name": "b"}]')
    page.locator("#estimate").get_by_text("4 samples").wait_for()
    tab.check()
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/jobs/job_*")
    page.get_by_text("0 / 4", exact=True).wait_for()
    job_id = page.url.rpartition("/")[2]
    leases = service.claim(job_id, count=4)
    scores = {"exact": Score(value=1.0, answer="<b>")}
    service.finish(leases[0], scores=scores, tensors=EMBED)
    page.get_by_text("1 / 4", exact=True).wait_for()
    page.locator("#compared").get_by_text("McNemar p").wait_for()
    for lease in leases[1:]:
        service.finish(lease, scores=scores, tensors=EMBED)
    page.get_by_text("4 / 4", exact=True).wait_for()
    page.locator("h1 + .status.completed").wait_for()
    page.locator("#compared").get_by_text("McNemar p").wait_for()
    tab.check()
    page.locator(".grid a.right").first.click()
    page.get_by_role("heading", name="Sample 0").wait_for()
    page.get_by_role("link", name="Difference from b").click()
    page.get_by_text("only here").wait_for()
    tab.check()
    page.goto(f"{served.url}/jobs")
    page.get_by_label("Choose all jobs of this page").check()
    assert page.locator("input[name=ids]:checked").count() == 1
    tab.check()
    page.get_by_text("Delete", exact=True).first.click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_text("No job was submitted yet.").wait_for()
    assert tab.trouble == []
    page.context.close()


def test_a_chosen_file_becomes_the_dataset(
    service: Service, served: Application, browser: Any, tmp_path: Path
) -> None:
    service.load_model()
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"question": "1 + 1", "answer": "#### 2"}\n' * 3)
    tab = Tab(browser, served.url)
    page = tab.page
    page.goto(f"{served.url}/submit")
    page.get_by_label("Kind").select_option("evaluation")
    page.get_by_label("or a file of yours").set_input_files(problems)
    page.get_by_text("problems.jsonl is stored as file_").wait_for()
    page.locator("#estimate").get_by_text("3 samples").wait_for()
    tab.check()
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/jobs/job_*")
    page.get_by_text("0 / 3", exact=True).wait_for()
    page.goto(f"{served.url}/jobs?kind=evaluation")
    page.get_by_text("All that match").click()
    page.get_by_role("button", name="Cancel 1 that have not ended").click()
    page.locator(".status.cancelled").wait_for()
    assert tab.trouble == []
    page.context.close()


def test_a_page_goes_on_after_a_restart(service: Service, served: Application, browser: Any) -> None:
    first = service.submit()
    page = Tab(browser, served.url).page
    page.goto(f"{served.url}/jobs")
    page.wait_for_function("() => newest !== ''")  # the stream has begun
    page.locator(f"a[href='/jobs/{first}']").focus()
    served.stop()
    page.get_by_text("Connecting again").wait_for()
    second = service.submit()
    served.start()
    page.locator(f"a[href='/jobs/{second}']").wait_for()
    page.get_by_text("Connecting again").wait_for(state="hidden")
    assert page.evaluate("document.activeElement.getAttribute('href')") == f"/jobs/{first}"
    page.context.close()


def test_a_browser_signs_in_and_out(keyed: Keyed, browser: Any) -> None:
    application = Application(keyed.app)
    tab = Tab(browser, application.url)
    page = tab.page
    page.goto(f"{application.url}/jobs?tag=a")
    page.get_by_label("API key").fill(keyed.make_key("read"))
    tab.check()
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?tag=a")
    assert page.get_by_role("link", name="Submit").count() == 0
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in")
    assert tab.trouble == []
    page.context.close()
    application.stop()


def test_an_admin_makes_and_revokes_a_key_in_the_browser(keyed: Keyed, browser: Any) -> None:
    application = Application(keyed.app)
    admin, reader = Tab(browser, application.url), Tab(browser, application.url)

    def sign_in(tab: Tab, path: str, key: str) -> None:
        tab.page.goto(f"{application.url}{path}")
        tab.page.get_by_label("API key").fill(key)
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_url(f"**{path}")

    sign_in(admin, "/keys", ROOT_KEY)
    admin.page.get_by_label("Name").fill("laptop")
    admin.page.get_by_label("Role").select_option("read")
    admin.page.get_by_role("button", name="Create").click()
    key = admin.page.get_by_role("status").locator("pre").text_content()
    admin.check()
    job_id = keyed.client.post("/v1/jobs", json=capture_spec(), headers=keyed.headers()).json()["id"]
    admin.page.goto(f"{application.url}/jobs/{job_id}")
    admin.page.get_by_text("Cancel", exact=True).first.wait_for()
    sign_in(reader, "/jobs", key)
    reader.page.get_by_text("No job was submitted yet.").wait_for()
    names = reader.page.get_by_role("navigation").get_by_role("link").all_text_contents()
    assert not {"Submit", "Keys"} & set(names)
    reader.check()
    admin.page.goto(f"{application.url}/keys")
    row = admin.page.get_by_role("row", name="laptop")
    row.locator("summary").click()
    row.get_by_role("button", name="Revoke").click()
    row.get_by_text("revoked").wait_for()
    reader.page.goto(f"{application.url}/jobs")
    reader.page.get_by_label("API key").wait_for()
    assert admin.trouble == reader.trouble == []
    for tab in (admin, reader):
        tab.page.context.close()
    application.stop()


@pytest.mark.soak
def test_scripts_of_the_page_keep_to_the_prefix_of_a_proxy(
    start: Start, settings: Settings, browser: Any
) -> None:
    """A request beside the prefix is noted as trouble."""
    prefix = "/node/gpu-1/8420"
    service = start(settings.model_copy(update={"root_path": prefix}))
    service.load_model()
    application = Application(service.app)
    tab = Tab(browser, f"{application.url}{prefix}/")
    page = tab.page
    page.goto(f"{application.url}{prefix}/")
    page.get_by_role("link", name="Submit").click()
    row = b'{"question": "What is 1 + 1?", "answer": "#### 2"}\n'
    page.locator("input[type=file]").set_input_files(
        {"name": "rows.jsonl", "mimeType": "application/json", "buffer": row}
    )
    page.get_by_text("rows.jsonl is stored as").wait_for()
    page.goto(f"{application.url}{prefix}/submit")
    page.get_by_label("Kind").select_option("capture")
    page.get_by_label("Prompts").fill("one")
    page.get_by_role("textbox", name="Capture").fill("embed")
    page.locator("#estimate").get_by_text("1 samples").wait_for()
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(f"**{prefix}/jobs/job_*")
    page.get_by_text("0 / 1", exact=True).wait_for()
    [lease] = service.claim(page.url.rpartition("/")[2])
    service.finish(lease, tensors=EMBED)
    page.get_by_text("1 / 1", exact=True).wait_for()  # the stream said that there is news
    page.goto(f"{application.url}{prefix}/sessions/{lease.session_id}")
    page.locator(".tokens [data-token], .tokens span").first.wait_for()
    assert tab.trouble == []
    page.context.close()
    application.stop()
