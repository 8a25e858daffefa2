"""The session viewer in a real browser."""

import csv
import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.api.conftest import Service
from tests.integration.api.pages import test_browser
from tests.integration.api.pages.test_browser import Tab
from tests.support.servers.application import Application
from tests.support.viewed import store_session

pytestmark = test_browser.pytestmark
browser, served = test_browser.browser, test_browser.served

TEXTS = [
    '<img src=x onerror=alert(1)>"]]>&amp;', "=1+1", "\u202e\u05e9\u05dc", " \U0001f600", "a\nb",
    "long " * 500_000, "wide " * 500_000, "end",
]  # fmt: skip
LAYERS = 3
ROWS = np.random.default_rng(3).normal(size=(LAYERS, 7, 8)).astype("<f4")
NAMES = [f"resid_post.{layer}" for layer in range(LAYERS)]
#: width of the layers' names beside the heatmap
GUTTER = 40


@pytest.fixture
def sessions(service: Service) -> list[str]:
    """Two sessions of one problem; every number of the second is larger by one."""
    job_id = service.submit(conditions=[{"name": "a"}, {"name": "b"}])
    return [
        store_session(
            service.database, service.services.store, lease, TEXTS, dict(zip(NAMES, rows, strict=True))
        )
        for lease, rows in zip(service.claim(job_id, 2), (ROWS, ROWS + np.float32(1)), strict=True)
    ]


def shown(page: Any) -> None:
    """Wait for tokens and heatmap."""
    page.locator("#viewer-status").get_by_text(re.compile(r"\d tokens$")).wait_for()


def saved(page: Any, form: str) -> bytes:
    with page.expect_download() as download:
        page.get_by_role("button", name=form).click()
    return Path(download.value.path()).read_bytes()


def numbers(page: Any) -> Any:
    """The exported numbers of a pane: the colours' column, then those of the layers, the last one first."""
    lines = list(csv.reader(io.StringIO(saved(page, "CSV").decode(), newline="")))
    return np.array([[float(value) if value else np.nan for value in line[4:]] for line in lines[1:]])


def test_colour_choose_compare_tag_delete(
    service: Service, served: Application, browser: Any, sessions: list[str]
) -> None:
    tab = Tab(browser, served.url)
    page = tab.page
    page.goto(f"{served.url}/sessions/{sessions[0]}")
    shown(page)
    tab.check()
    tokens = page.locator(".token")
    norms = np.linalg.norm(ROWS, axis=2)
    colours = tokens.evaluate_all("all => all.map(one => one.style.backgroundColor)")
    assert colours[norms[1].argmin()] == "rgb(0, 34, 78)"
    assert [bool(colour) for colour in colours] == [True] * 7 + [False]
    np.testing.assert_allclose(numbers(page)[:7], np.vstack([norms[1], norms[::-1]]).T, rtol=1e-6)
    assert tokens.nth(0).text_content() == TEXTS[0]
    tokens.nth(3).hover()
    hover = f'" \U0001f600" · token 3 · id 103 · answer · norm of resid_post.1 {norms[1, 3]:.4g}'
    assert tokens.nth(3).get_attribute("title") == hover

    canvas = page.locator("canvas")
    box = canvas.bounding_box()
    canvas.click(position={"x": GUTTER + (box["width"] - GUTTER) * 4.5 / 8, "y": box["height"] / 6})
    page.get_by_role("heading", name="Token 4").wait_for()
    assert re.search(r"hook=resid_post\.2.*token=4", page.url)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    top = int(np.abs(ROWS[1, 3]).argmax())
    page.get_by_text(re.compile(r"resid_post\.1: norm")).wait_for()
    page.get_by_role("heading", name="Token 3").wait_for()
    page.get_by_role("button", name=f"channel {top}", exact=True).click()
    page.wait_for_url(f"**of=channel&channel={top}*")
    shown(page)
    np.testing.assert_array_equal(numbers(page)[:7, 0].astype("<f4"), ROWS[1, :, top])
    tab.check()

    page.get_by_label("Compare with").fill(sessions[1])
    page.get_by_role("button", name="Compare").click()
    shown(page)
    page.get_by_label("Colour by").select_option("channel")
    page.get_by_label("Difference").check()
    shown(page)
    np.testing.assert_allclose(numbers(page)[:7], 1, rtol=1e-5)
    picture = ET.fromstring(saved(page, "SVG"))
    texts = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert TEXTS[0] in texts
    assert saved(page, "PNG").startswith(b"\x89PNG")
    tokens.nth(1).click()
    assert page.locator(".token.chosen").count() == 2
    tab.check()

    page.get_by_label("Tags").fill("<u>, night")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url(f"**/sessions/{sessions[0]}")
    assert page.get_by_label("Tags").input_value() == "<u>, night"
    page.locator(".confirm summary").click()
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/jobs/job_*")
    assert service.client.get(f"/v1/activations/sessions/{sessions[0]}").status_code == 404
    assert tab.trouble == []
    page.context.close()
