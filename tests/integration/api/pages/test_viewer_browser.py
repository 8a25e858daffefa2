"""The session viewer in a real browser."""

import csv
import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.contract.models import LayerHeads
from actograph.settings import Settings
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service, Start
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
#: height of a layer, and of the tokens' texts below
LINE, FOOT = 20, 88


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
    assert colours[1 + norms[1, 1:].argmin()] == "rgb(0, 34, 78)"
    assert [bool(colour) for colour in colours] == [False] + [True] * 6 + [False]
    np.testing.assert_allclose(numbers(page)[:7], np.vstack([norms[1], norms[::-1]]).T, rtol=1e-6)
    assert tokens.nth(0).text_content() == TEXTS[0]
    tokens.nth(3).hover()
    hover = f'" \U0001f600" · token 3 · id 103 · answer · norm of resid_post.1 {norms[1, 3]:.4g}'
    assert tokens.nth(3).get_attribute("title") == hover

    canvas = page.locator("canvas")
    box = canvas.bounding_box()
    canvas.click(position={"x": GUTTER + (box["width"] - GUTTER) * 4.5 / 8, "y": LINE / 2})
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


@pytest.fixture
def uneven(service: Service) -> str:
    """A session like a real model's: a first token with huge rows, and layers that grow."""
    (lease,) = service.claim(service.submit())
    rows = ROWS * np.float32(10) ** np.arange(LAYERS, dtype="<f4")[:, None, None]
    rows[:, 0] *= 1000
    other = {"mlp_out.0": ROWS[0]}
    return store_session(
        service.database, service.services.store, lease, [f"word{n}" for n in range(8)],
        dict(zip(NAMES, rows, strict=True)) | other,
    )  # fmt: skip


#: colours of the middles of the cells: null where the canvas shows its background
CELLS = """([layers, tokens, gutter, line]) => {
  const canvas = document.querySelector("canvas");
  const pen = canvas.getContext("2d");
  const wide = (canvas.clientWidth - gutter) / tokens;
  const at = (x, y) => [...pen.getImageData(x, y, 1, 1).data].slice(0, 3);
  const none = String(at(gutter - 1, 1));
  return Array.from({ length: layers }, (_, row) => Array.from({ length: tokens }, (_, place) => {
    const found = at(gutter + (place + 0.5) * wide, (row + 0.5) * line);
    return String(found) === none ? null : found;
  }));
}"""
DARKEST, BRIGHTEST = [0, 34, 78], [254, 232, 56]
#: whether there are letters below each column
LABELLED = """([tokens, gutter, from, foot]) => {
  const canvas = document.querySelector("canvas");
  const pen = canvas.getContext("2d");
  const wide = (canvas.clientWidth - gutter) / tokens;
  return Array.from({ length: tokens }, (_, place) => {
    const { data } = pen.getImageData(gutter + place * wide, from, wide, foot);
    return new Set(new Uint32Array(data.buffer)).size > 1;
  });
}"""


def cells(page: Any) -> list[list[list[int] | None]]:
    """Colours of the heatmap, the first layer first."""
    shown(page)
    found: list[list[list[int] | None]] = page.evaluate(CELLS, [LAYERS, 8, GUTTER, LINE])
    return found[::-1]


def test_a_huge_first_token_and_growing_layers_hide_nothing(
    served: Application, browser: Any, uneven: str
) -> None:
    tab = Tab(browser, served.url)
    page = tab.page
    page.goto(f"{served.url}/sessions/{uneven}")
    norms = np.linalg.norm(ROWS, axis=2)
    first, ends = 1, [None, None]
    for layer, line in enumerate(cells(page)):
        assert [line[0], line[7]] == ends, "the first token is left out, the last one has no row"
        assert line[first + norms[layer, first:].argmin()] == DARKEST
        assert line[first + norms[layer, first:].argmax()] == BRIGHTEST
    assert page.evaluate(LABELLED, [8, GUTTER, LAYERS * LINE, FOOT]) == [True] * 8
    page.locator("#heat-scale").get_by_text("smallest").wait_for()

    page.get_by_label("One scale for all layers").check()
    shared = cells(page)
    assert DARKEST in shared[0]
    assert BRIGHTEST in shared[2]
    assert BRIGHTEST not in shared[0]
    middles = np.array(shared[1][1:7])
    assert ((middles > DARKEST) & (middles < BRIGHTEST)).any(axis=1).all(), "a logarithmic scale shows them"
    page.get_by_label("Linear scale of norms").check()
    assert np.array(cells(page)[1][1:7])[:, 0].max() < middles[:, 0].min()
    page.get_by_label("First token").check()
    assert [line[0] for line in cells(page)][2] == BRIGHTEST
    page.reload()
    assert [line[0] for line in cells(page)][2] == BRIGHTEST, "the address has the choices"
    page.locator("canvas").hover(position={"x": GUTTER + 1, "y": LINE / 2})
    title = page.locator("canvas").get_attribute("title")
    assert title == f"word0 · token 0 · resid_post.2 {norms[2, 0] * 1e5:.2e}".replace("e+05", "e+5")
    tab.check()
    page.context.close()


def test_vectors_are_offered_for_the_hook_that_is_shown(
    service: Service, served: Application, browser: Any, uneven: str
) -> None:
    hooks = ["resid_post.0", "resid_post.1", "blocks.1.hook_resid_post", "mlp_out.0", "embed"]
    for name, hook in enumerate(hooks):
        body = {"name": f"v{name}", "hook": hook, "vector": [1.0] * 8}
        assert service.client.post("/v1/vectors", json=body).status_code == 201
    tab = Tab(browser, served.url)
    page = tab.page
    page.goto(f"{served.url}/sessions/{uneven}")
    offered = page.locator("[name=vector] option:not([hidden])")

    def names() -> list[str]:
        shown(page)
        return sorted(text.split()[0] for text in offered.all_text_contents())

    assert names() == ["v1", "v2"]
    page.get_by_label("Direction").select_option(label="v1 (resid_post.1)")
    assert names() == ["v1", "v2"]
    page.get_by_label("Hook").select_option("resid_post.0")
    assert names() == ["v0", "v1"], "the vector in use stays for other layers"
    assert page.get_by_label("Colour by").input_value() == "projection"
    page.reload()
    assert names() == ["v0", "v1"]
    page.get_by_label("Hook").select_option("mlp_out.0")
    assert names() == ["v3"]
    page.get_by_label("Hook").select_option("resid_post.2")
    assert names() == []
    assert page.get_by_label("Colour by").input_value() == "norm"
    assert page.locator("option[value=projection]").is_disabled()
    tab.check()
    page.context.close()


#: two heads of width 2; latents, and a readout, of six tokens, of which there are seven
HEADS = LayerHeads(heads=2, key_heads=1, width=2, scale=0.5)
QUERIES, KEYS, READOUT = (
    np.random.default_rng(seed).normal(size=(6, width)).astype("<f4") for seed, width in enumerate((4, 2, 1))
)
LATENT_NUMBERS = np.array([[7, 3], [0, 49], [0, -1], [3, 7], [12, 0], [-1, -1]], np.int32)
ACTIVATIONS = np.array([[4, 2], [3, 1], [5, 0], [6, 5.5], [2, 1], [0, 0]], np.float32)
#: of a proxy
PREFIX = "/node/gpu-07/8420"


def shares(head: int, token: int) -> Any:
    """The attention of a token, from the first token to its own."""
    scores = KEYS[: token + 1] @ QUERIES[token, 2 * head : 2 * head + 2] * 0.5
    return np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()


def test_heads_latents_and_readouts_behind_a_path_prefix(
    start: Start, settings: Settings, browser: Any
) -> None:
    service = start(settings.model_copy(update={"root_path": PREFIX}))
    tensors = {
        name: TensorRows(name, "I32" if rows.dtype.kind == "i" else "F32", rows.shape, 0, rows)
        for name, rows in {
            "resid_post.0": ROWS[0, :6], "q.1": QUERIES, "k.1": KEYS, "readout:mood": READOUT,
            "sae:res.indices": LATENT_NUMBERS, "sae:res.values": ACTIVATIONS,
        }.items()
    }  # fmt: skip
    (lease,) = service.claim(service.submit())
    session_id = service.finish(lease, tensors=tensors, attention={1: HEADS}, latents=50)
    served = Application(service.app)
    try:
        _look_around(Tab(browser, f"{served.url}{PREFIX}/"), f"{served.url}{PREFIX}", session_id or "")
    finally:
        served.stop()


def _look_around(tab: Tab, url: str, session_id: str) -> None:
    page = tab.page
    page.goto(f"{url}/sessions/{session_id}")
    shown(page)
    tokens, status = page.locator(".token"), page.locator("#viewer-status")
    plain = tokens.evaluate_all("all => all.map(one => one.style.backgroundColor)")
    tokens.nth(2).hover()
    value = f"{float(f'{READOUT[2, 0]:.4g}'):g}"
    assert tokens.nth(2).get_attribute("title").endswith(f"· readout:mood {value}")

    page.get_by_label("Attention").select_option("layer 1")
    page.get_by_label("Head").fill("1")
    page.keyboard.press("Tab")
    for token in (4, 5):
        tokens.nth(token).hover()
        weights = shares(1, token)
        best = int(weights.argmax())
        looks = f"head 1 of layer 1 · token {token} looks: {weights[best]:.4g} at {best} "
        status.get_by_text(looks).wait_for()
        colours = tokens.evaluate_all("all => all.map(one => one.style.backgroundColor)")
        assert [bool(one) for one in colours] == [True] * (token + 1) + [False] * (6 - token)
        assert f"attention of head 1 of layer 1, token {token}" in page.locator("#token-scale").inner_text()
    tab.check()
    tokens.nth(6).hover()
    status.get_by_text("no row of q.1 for token 6").wait_for()
    assert [text for text in tab.trouble if "404" in text] == tab.trouble, "the browser tells it too"
    tab.trouble.clear()
    page.locator("h1").hover()
    assert tokens.evaluate_all("all => all.map(one => one.style.backgroundColor)") == plain
    tokens.nth(3).click()
    page.locator("h1").hover()
    status.get_by_text("head 1 of layer 1 · token 3 looks").wait_for()
    page.locator(".tokens").focus()
    page.keyboard.press("H")
    status.get_by_text("head 0 of layer 1 · token 3 looks").wait_for()
    page.wait_for_url("**attention=1&head=0*")
    page.get_by_label("Attention").select_option("none")

    page.get_by_label("Hook").select_option("readout:mood")
    shown(page)
    assert "norm" not in page.locator("#token-scale").inner_text()
    np.testing.assert_array_equal(numbers(page)[:6, 0].astype("<f4"), READOUT[:, 0])
    assert page.locator("#token-scale").inner_text().startswith("≤ -"), "a scale around zero"

    page.get_by_label("Hook").select_option("sae:res")
    strongest = page.locator("#viewer-latents button")
    strongest.nth(4).wait_for()
    assert strongest.all_text_contents() == ["3: 6", "7: 5.5", "0: 5", "12: 2", "49: 1"]
    strongest.nth(1).click()
    page.wait_for_url("**of=channel&channel=7*")
    shown(page)
    np.testing.assert_array_equal(numbers(page)[:6, 0], [4, 0, 0, 5.5, 0, 0])
    assert "latent 7 of sae:res" in page.locator("#token-scale").inner_text()
    assert page.get_by_label("Latent").input_value() == "7"
    tab.check()
    page.get_by_role("link", name="in other sessions").click()
    page.get_by_role("heading", name="Sessions in which it is most active").wait_for()
    tab.check()
    page.locator("table a.id").click()
    shown(page)
    page.get_by_role("heading", name="Token 3").wait_for()
    assert page.get_by_label("Colour by").input_value() == "channel"
    assert page.get_by_label("Latent").input_value() == "7"
    for link in ("Overview", "Jobs", "Sessions", "Submit", "Models"):
        page.get_by_role("link", name=link, exact=True).first.click()
        page.locator("[aria-current=page]").get_by_text(link).wait_for()
    tab.check()
    page.context.close()
