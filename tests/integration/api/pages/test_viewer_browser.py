"""The session viewer in a real browser: numbers, keys, comparison, export, hostile texts."""

import csv
import io
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from actograph.contract.resources import TensorInfo
from storage.index.ids import new_session_id
from storage.queue import model_tokenizers
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.sessions import NewSession, insert
from storage.sessions.writer import SessionWriter, TensorRows

if TYPE_CHECKING:
    from tests.integration.api.conftest import Service

# a machine without a browser skips these tests, CI too
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH"),
]

SECONDS = 120_000
LAYERS = 3
TEXTS = [
    "<img src=x onerror=alert(1)>", "=1+1", "\u202e\u05e9\u05dc\u05d5\u05dd", "\U0001f600", "a\nb",
    '"]]>&amp;', "end",
]  # fmt: skip
RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(LAYERS, 6, 8)).astype("<f4")
STEERED = ROWS + np.float32(1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        one = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """A tab that may say nothing in the console and ask no other host."""
    context = browser.new_context(viewport={"width": 1000, "height": 800}, accept_downloads=True)
    tab = context.new_page()
    tab.set_default_timeout(SECONDS)
    trouble: list[str] = []

    def on_console(message: Any) -> None:
        if message.type in ("error", "warning"):
            trouble.append(message.text)

    def on_dialog(dialog: Any) -> None:
        trouble.append(dialog.message)
        dialog.dismiss()

    def on_request(asked: Any) -> None:
        if not asked.url.startswith((url, "blob:")):
            trouble.append(asked.url)

    tab.on("console", on_console)
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("dialog", on_dialog)
    tab.on("request", on_request)
    yield tab
    context.close()
    assert trouble == []


@pytest.fixture
def sessions(service: "Service") -> list[str]:
    """A plain session and one with other rows, whose tokens have hostile texts."""
    vocabulary = {text: 100 + place for place, text in enumerate(TEXTS)} | {"?": 0}
    definition = Tokenizer(models.WordLevel(vocabulary, unk_token="?")).to_str()
    with service.database.write() as session:
        model_tokenizers.keep(session, "demo", {"tokenizer": definition, "special_tokens": {}})
    job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}])
    found = []
    for lease, rows in zip(service.claim(job_id, 2), (ROWS, STEERED), strict=True):
        names = [f"resid_post.{layer}" for layer in range(LAYERS)]
        tensors = {n: TensorRows(n, "F32", (6, 8), 0, one) for n, one in zip(names, rows, strict=True)}
        found.append(str(service.finish(lease, tensors=tensors)))
    return found


def opened(page: Any, url: str, session_id: str, query: str = "") -> None:
    page.goto(f"{url}/sessions/{session_id}/view?{query}")
    shown(page)


def shown(page: Any) -> None:
    """Wait for tokens and heatmap."""
    page.wait_for_function("() => document.querySelector('#viewer-status').textContent.includes('shown.')")


def saved(page: Any, form: str) -> bytes:
    with page.expect_download() as download:
        page.click(f"[data-export={form}]")
    with open(download.value.path(), "rb") as file:  # noqa: PTH123 (playwright's own path)
        return file.read()


def numbers(page: Any, url: str, session_id: str, query: str) -> Any:
    """The exported numbers of a view: the colours' column, then the layers', the last one first."""
    opened(page, url, session_id, query)
    lines = list(csv.reader(io.StringIO(saved(page, "csv").decode())))
    return [[float(value) if value else np.nan for value in line[4:]] for line in lines[1:]]


def test_tokens_are_coloured_by_numbers_and_chosen_by_keys(page: Any, url: str, sessions: list[str]) -> None:
    opened(page, url, sessions[0])
    assert page.input_value("[name=hook]") == "resid_post.1"
    norms = np.linalg.norm(ROWS[1], axis=1)
    coloured = page.eval_on_selector_all(".token", "all => all.map(one => one.style.backgroundColor)")
    assert [bool(colour) for colour in coloured] == [True] * 6 + [False]
    assert coloured[int(norms.argmin())] == "rgb(0, 34, 78)"
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    page.wait_for_selector("#viewer-row table")
    assert re.search(r"hook=resid_post\.2.*token=2|token=2.*hook=resid_post\.2", page.url)
    top = int(np.abs(ROWS[2, 2]).argmax())
    page.wait_for_function(
        f"() => document.querySelector('#viewer-row th').textContent === 'channel {top}' && "
        "document.querySelector('#viewer-row').textContent.includes('resid_post.2')"
    )
    assert page.locator(".token.chosen").get_attribute("data-token") == "2"
    page.click("#viewer-row button")  # colour by the top channel
    page.wait_for_function(
        f"location.search.includes('of=channel') && location.search.includes('channel={top}')"
    )
    page.keyboard.press("?")
    assert page.locator("#viewer-help").is_visible()
    page.keyboard.press("Escape")


def test_a_cell_of_the_heatmap_opens_its_row(page: Any, url: str, sessions: list[str]) -> None:
    opened(page, url, sessions[0])
    canvas = page.locator(".heat canvas")
    size = canvas.bounding_box()
    canvas.click(position={"x": 44 + (size["width"] - 44) * 4.5 / 7, "y": size["height"] * 0.5 / LAYERS})
    page.wait_for_selector("#viewer-row table")
    assert "token=4" in page.url
    assert "hook=resid_post.2" in page.url
    assert page.locator("#viewer-row h2").text_content() == 'Token 4 " a\\nb"'


def test_exported_numbers_are_those_of_numpy(page: Any, url: str, sessions: list[str]) -> None:
    found = np.array(numbers(page, url, sessions[0], "hook=resid_post.0"))
    norms = np.linalg.norm(ROWS, axis=2)
    np.testing.assert_allclose(found[:6, 0], norms[0], rtol=1e-6)
    np.testing.assert_allclose(found[:6, 1:], norms[::-1].T, rtol=1e-6)
    assert np.isnan(found[6]).all()
    found = np.array(numbers(page, url, sessions[0], "hook=resid_post.2&of=channel&channel=5"))
    np.testing.assert_array_equal(found[:6, 0].astype("<f4"), ROWS[2, :, 5])


def test_two_sessions_and_their_difference(page: Any, url: str, sessions: list[str]) -> None:
    query = f"with={sessions[1]}&hook=resid_post.0&of=channel&channel=1&difference=1"
    found = np.array(numbers(page, url, sessions[0], query))
    np.testing.assert_allclose(found[:6, 0], ROWS[0, :, 1], rtol=1e-6)
    np.testing.assert_allclose(found[7:13, :], np.ones((6, 4)), rtol=1e-5)
    assert page.locator(".token.differs").count() == 0
    page.keyboard.press("End")
    assert page.locator(".token.chosen").count() == 2


def test_hostile_texts_are_text_everywhere(page: Any, url: str, sessions: list[str]) -> None:
    opened(page, url, sessions[0], "token=0")
    page.wait_for_selector("#viewer-row table")
    assert page.locator("#viewer img").count() == 0
    assert page.locator(".token").nth(0).text_content() == TEXTS[0]
    assert page.locator(".token").nth(4).text_content().replace("⏎", "") == " a\nb"
    lines = list(csv.reader(io.StringIO(saved(page, "csv").decode(), newline="")))
    assert lines[1][3] == TEXTS[0]
    assert all(not line[3].startswith(("=", "+", "-", "@")) for line in lines)
    picture = ET.fromstring(saved(page, "svg"))
    texts = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert TEXTS[0] in texts
    assert {one.tag.rpartition("}")[2] for one in picture.iter()} == {"svg", "rect", "text"}
    assert saved(page, "png").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "query", ["token=99&hook=none&of=channel&channel=900", "token=x&of=y&channel=-1&align=z"]
)
def test_an_odd_address_shows_what_there_is(page: Any, url: str, sessions: list[str], query: str) -> None:
    opened(page, url, sessions[0], query)
    assert page.input_value("[name=hook]") == "resid_post.1"
    assert page.locator(".token").count() == 7
    assert "token=6" in page.url or "token" not in page.url


def long_session(service: "Service", tokens: int) -> str:
    """A session of many tokens, whose row t is t."""
    (lease,) = service.claim(service.submit())
    session_id, rows = new_session_id(), np.arange(tokens, dtype="<f4").reshape(-1, 1)
    manifest = SessionManifest(
        session_id=session_id, job_id=lease.job_id, sample_id=lease.id, sample_index=0, model="demo",
        capture={}, capture_sha256="0" * 64, dtype="model", prompt_tokens=tokens, generated_tokens=0, seed=0,
        created_at=0, tensors={"embed": StoredTensor(shape=(tokens, 1), dtype="F32")},
    )  # fmt: skip
    with SessionWriter(service.services.store, session_id) as writer:
        writer.write_shard([TensorRows("embed", "F32", (tokens, 1), 0, rows)])
        files = writer.finish(manifest, range(tokens))
    info = TensorInfo(shape=[tokens, 1], dtype="F32", nbytes=rows.nbytes)
    new = NewSession(
        id=session_id, job_id=lease.job_id, sample_id=lease.id, sample_index=0, condition="", epoch=0,
        model="demo", prompt_tokens=tokens, generated_tokens=0, rows=tokens, dtype="F32",
        hooks={"embed": info}, files=files, correct=None,
    )  # fmt: skip
    with service.database.write() as session:
        insert(session, new)
    return session_id


def test_only_the_tokens_in_view_are_read(page: Any, url: str, service: "Service") -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    session_id = long_session(service, 2100)
    opened(page, url, session_id)
    assert page.locator(".token").count() == 2048
    assert all("tokens=0:2048" in unquote(one) for one in asked if "tokens=" in one)
    page.keyboard.press("End")
    page.wait_for_selector(".token.chosen[data-token='2099']")
    assert page.locator(".token").count() == 52
    page.keyboard.press("Home")
    page.wait_for_selector(".token.chosen[data-token='0']")
    page.click("[data-step='1']")
    page.wait_for_selector(".token[data-token='2048']")
    shown(page)
    lines = list(csv.reader(io.StringIO(saved(page, "csv").decode())))
    assert [float(line[4]) for line in lines[1:]] == list(range(2048, 2100))
