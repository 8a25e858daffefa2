"""Outputs of notebooks in a real browser: what they draw, and that no text of a model runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import open_folder
from actograph.client.stored_session import SessionTensors
from tests.integration.api.pages import test_browser
from tests.support.session_folders import write_session_folder

pytestmark = test_browser.pytestmark
browser = test_browser.browser

HOSTILE = (
    "</script><img src=x onerror=alert(1)>", "<script>alert(2)</script>", '"><svg onload=alert(3)>',
    "</style>", "<!--", "]]>", "\u202e&lt;", "${alert(5)}", "\u2028", "a\nb", "end",
)  # fmt: skip
PAGE = '<!doctype html><meta charset="utf-8"><body data-jp-theme-light="{light}">{outputs}'
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(26, 32, 41)"


class NotebookPage:
    """A page with outputs, which notes all that runs or is asked for besides them."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.folder, self.browser = folder, browser
        self.trouble: list[str] = []

    def open(self, *outputs: str, light: str = "", scripts: bool = True, scheme: str = "light") -> Any:
        file = self.folder / f"outputs-{light}-{scripts}-{scheme}.html"
        file.write_text(PAGE.format(light=light, outputs="<hr>".join(outputs)), encoding="utf-8")
        context = self.browser.new_context(java_script_enabled=scripts, color_scheme=scheme)
        page = context.new_page()
        page.on("console", lambda said: self.trouble.append(said.text))
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("dialog", lambda dialog: (self.trouble.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.trouble.append(request.url))
        page.goto(file.as_uri())
        assert self.trouble == [file.as_uri()], "the page itself is all that is asked for"
        self.trouble.clear()
        return page


@pytest.fixture
def session(tmp_path: Path) -> SessionTensors:
    return open_folder(write_session_folder(tmp_path, HOSTILE))


@pytest.fixture
def notebook(browser: Any, tmp_path: Path) -> Iterator[NotebookPage]:
    made = NotebookPage(browser, tmp_path)
    yield made
    for context in made.browser.contexts:
        context.close()


COLOURS = "all => all.map(one => [one.style.backgroundColor, one.style.color])"


def test_hostile_tokens_do_not_run_and_have_the_same_colours_without_scripts(
    session: SessionTensors, notebook: NotebookPage
) -> None:
    outputs = [
        session._repr_html_(),
        session.show("resid_post.0", channel=1).html,
        session.show(latent=1, attention=(1, 0)).html,
        session.show(readout="mood").html,
        session["resid_post.0"]._repr_html_(),
    ]
    page, static = notebook.open(*outputs), notebook.open(*outputs, scripts=False)
    tokens, plain = page.locator(".token"), static.locator(".token")
    assert tokens.count() == plain.count() == 4 * len(HOSTILE)
    drawn = tokens.evaluate_all(COLOURS)
    assert drawn == plain.evaluate_all(COLOURS)
    assert sum(bool(one) for one, _ in drawn) == 4 * (len(HOSTILE) - 1) - 1
    signs = [text.replace("\n", "⏎\n") for text in HOSTILE]
    assert tokens.all_text_contents() == plain.all_text_contents() == signs * 4
    scales = [one.locator(".scale").all_inner_texts() for one in (page, static)]
    assert scales[0] == scales[1]
    assert page.locator(".spark").bounding_box()["height"] > 10
    tokens.first.hover()
    value = session["readout:mood"][0, 0]
    assert tokens.first.get_attribute("title") == (
        f'"{HOSTILE[0]}" · token 0 · id 100 · prompt · norm of resid_post.1 '
        f"{np.linalg.norm(session['resid_post.1'][0]):.4g} · readout:mood {value:.4g}"
    )
    assert notebook.trouble == []


def test_the_mouse_on_a_token_shows_its_attention(session: SessionTensors, notebook: NotebookPage) -> None:
    weights = session.attention(1, 1)
    for start in (0, 2):
        page = notebook.open(session.show(attention=(1, 1), tokens=range(start, len(HOSTILE))).html)
        tokens, told = page.locator(".token"), page.locator(".told")
        before = tokens.evaluate_all(COLOURS)
        for token in (4, 9):
            tokens.nth(token - start).hover()
            page.locator(".told").get_by_text(f"head 1 of layer 1 · token {token} looks: ").wait_for()
            scale = page.locator(".scale").inner_text()
            assert f"attention of head 1 of layer 1, token {token}" in scale
            inside = weights[token, start : token + 1]
            best = int(inside.argmax())
            text = told.inner_text()
            assert text.split("looks: ")[1].startswith(f"{inside[best]:.4g} at {start + best} ")
            assert ("are not in view" in text) == (start > 0)
            colours = [background for background, _ in tokens.evaluate_all(COLOURS)]
            assert [bool(one) for one in colours] == [True] * (token + 1 - start) + [False] * (10 - token)
            brightest = [place for place, one in enumerate(colours) if one == "rgb(254, 232, 56)"]
            counted = [place for place in range(len(inside)) if start + place > 0]
            assert max(counted, key=lambda place: inside[place]) in brightest
        # the last token has no row
        tokens.nth(10 - start).hover()
        page.locator(".scale").get_by_text("norm of resid_post.1").wait_for()
        assert tokens.evaluate_all(COLOURS) == before
        tokens.nth(3).click()
        page.mouse.move(0, 0)
        page.locator(".told").get_by_text(f"token {start + 3} looks").wait_for()
    assert notebook.trouble == []


def test_colours_follow_the_notebook_then_the_browser(
    session: SessionTensors, notebook: NotebookPage, subtests: pytest.Subtests
) -> None:
    html = session._repr_html_()
    for light, scheme, expected in [
        ("", "light", LIGHT), ("", "dark", DARK), ("true", "dark", LIGHT), ("false", "light", DARK),
    ]:  # fmt: skip
        with subtests.test(light=light, scheme=scheme):
            page = notebook.open(html, light=light, scheme=scheme)
            style = "one => getComputedStyle(one).backgroundColor"
            assert page.locator(".tokens").evaluate(style) == expected
