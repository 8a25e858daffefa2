"""The page of a service with 12,000 jobs, 100,000 sessions, and a session of 2,048 tokens in 28 layers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.settings import Settings
from storage.artifacts.factory import open_store
from storage.index.database import Database
from tests.integration.api.pages import test_browser
from tests.integration.api.pages.test_browser import Tab
from tests.support import large_store
from tests.support.large_store import LargeStore, Sizes

pytestmark = [*test_browser.pytestmark, pytest.mark.e2e]
browser = test_browser.browser

SIZES = Sizes()
SAMPLES = f"{2 * SIZES.problems:,}"


@pytest.fixture
def made(tmp_path: Path) -> LargeStore:
    """The store of a service that was not started yet."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    settings = Settings(home=home)
    database = Database.of(settings)
    found = large_store.make(database, open_store(settings.effective_artifact_url), SIZES)
    database.close()
    return found


def test_the_main_path_works(made: LargeStore, up: Callable[..., Any], browser: Any) -> None:
    service = up()
    service.await_ready()
    tab = Tab(browser, service.url)
    page = tab.page
    page.goto(f"{service.url}/jobs")
    for name in ("Next page", "Next page", "First page"):
        with page.expect_navigation():
            page.get_by_role("link", name=name).click()
        assert page.locator("tbody tr").count() == 50
    page.get_by_label("Text").fill("gsm8k")
    page.get_by_role("button", name="Filter").click()
    page.get_by_text(f"{SAMPLES} / {SAMPLES}").wait_for()
    page.locator(f"a[href='/jobs/{made.job_id}']").click()
    page.locator("#compared").get_by_text("McNemar p").wait_for()
    assert page.locator(".grid a.cell").count() == 1000
    tab.check()
    page.get_by_role("link", name="Next samples").click()
    page.locator(".grid a.cell").first.click()
    page.get_by_role("heading", name="Sample 500").wait_for()

    page.goto(f"{service.url}/sessions")
    page.get_by_label("Condition").fill("b")
    page.get_by_label("Correct").select_option("no")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**condition=b**")
    seen = set()
    for _ in range(3):
        rows = page.locator("tbody tr")
        assert set(rows.locator("td:nth-child(5)").all_text_contents()) == {"b"}
        seen |= set(rows.locator("td:nth-child(2) a").evaluate_all("all => all.map(one => one.href)"))
        with page.expect_navigation():
            page.get_by_role("link", name="Next page").click()
    assert len(seen) == 150

    page.goto(f"{service.url}/sessions/{made.session_id}")
    status = page.locator("#viewer-status")
    status.get_by_text(f"{SIZES.tokens} tokens", exact=True).wait_for()
    assert page.locator(".token").count() == SIZES.tokens
    last = f"resid_post.{SIZES.layers - 1}"
    page.get_by_label("Hook").select_option(last)
    page.locator("#token-scale").get_by_text(f"norm of {last}").wait_for()
    canvas = page.locator("canvas")
    box = canvas.bounding_box()
    # a column of the heatmap is narrower than a pixel
    canvas.click(position={"x": box["width"] / 2, "y": 1})
    page.get_by_role("heading", name=re.compile(r"Token 9\d\d")).wait_for()
    page.keyboard.press("End")
    # the last token of all has no row
    page.get_by_role("heading", name=f"Token {SIZES.tokens - 1}").wait_for()
    page.get_by_text("no row of this token").wait_for()
    page.keyboard.press("ArrowLeft")
    page.get_by_text(re.compile(rf"^{last}: norm .*, 1024 channels")).wait_for()
    page.get_by_role("button", name="channel 7", exact=True).wait_for()
    tab.check()

    page.goto(f"{service.url}/jobs?status=queued")
    page.get_by_text("All that match").click()
    page.get_by_role("button", name="Cancel 2,000 that have not ended").click()
    page.get_by_text("No job matches.").wait_for()
    assert tab.trouble == []
    page.context.close()
