"""Views of sessions, rows and matrices in notebooks, without a browser."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from actograph.client import open_folder
from actograph.client.matrix import Matrix, Skipped
from actograph.client.stored_session import SessionTensors
from actograph.contract.errors import InvalidRequest, NotFound
from tests.support.session_folders import write_session_folder

#: texts that would run, or end the element that they are in
HOSTILE = (
    "</script><img src=x onerror=alert(1)>", "<script>alert(2)</script>", '"><svg onload=alert(3)>',
    "'-alert(4)-'", "</style>", "<!--", "]]>", "\u202e&lt;", "${alert(5)}", "\u2028",
)  # fmt: skip
ELEMENTS = {"div", "style", "script", "p", "span", "bdi", "details", "summary", "table", "tr", "th", "td",
            "svg", "path"}  # fmt: skip


class Output(HTMLParser):
    """Elements, colours, titles and texts of the tokens of an output."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.plain = ""
        self.feed(html)
        roots = [attributes["data-output"] for _, attributes in self.tags if "data-output" in attributes]
        self.data: dict[str, Any] = json.loads(roots[0] or "") if roots else {}
        self.tokens = [found for _, found in self.tags if (found.get("class") or "").startswith("token ")] + [
            found for _, found in self.tags if found.get("class") == "token"
        ]

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    @override
    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1]
        if tag not in ("script", "style"):
            self.plain += data
        if attributes.get("class") == "token":
            self.texts.append(data)


@pytest.fixture
def session(tmp_path: Path) -> SessionTensors:
    return open_folder(write_session_folder(tmp_path, [f" word{n}" for n in range(9)]))


def numbers_of(output: Output, which: str = "numbers") -> Any:
    import base64

    return np.frombuffer(base64.b64decode(output.data[which]), "<f4")


def test_tokens_have_the_chosen_numbers(
    session: SessionTensors, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    rows = session["resid_post.1"][:]
    along = np.array([1.0, 2.0, 0.0, 0.0])
    none = [np.nan]
    latent = np.where(np.arange(8) % 3 == 2, session.latents("res").values[:, 0], 0)
    cases: list[tuple[dict[str, Any], str, Any]] = [
        ({}, "norm of resid_post.1", np.linalg.norm(rows, axis=1)),
        ({"hook": "blocks.1.hook_resid_post"}, "norm of resid_post.1", np.linalg.norm(rows, axis=1)),
        ({"hook": "mlp_out.1", "channel": 3}, "channel 3 of mlp_out.1",
         [*none * 2, *session["mlp_out.1"][:, 3]]),
        ({"hook": "resid_post.1", "probe": along}, "resid_post.1 along the probe", rows @ along / 5**0.5),
        ({"probe": {"resid_post.1": along}}, "resid_post.1 along the probe", rows @ along / 5**0.5),
        ({"latent": 2}, "latent 2 of sae:res", latent),
        ({"latent": ("sae:res", 2)}, "latent 2 of sae:res", latent),
        ({"hook": "sae:res", "channel": 2}, "latent 2 of sae:res", latent),
        ({"hook": "sae:res"}, "norm of sae:res", np.linalg.norm(session["sae:res"][:], axis=1)),
        ({"readout": "mood"}, "readout:mood", session["readout:mood"][:, 0]),
        ({"hook": "readout:mood"}, "readout:mood", session["readout:mood"][:, 0]),
    ]  # fmt: skip
    for choice, name, values in cases:
        with subtests.test(choice=str(choice)):
            output = Output(session.show(**choice).html)
            assert output.data["name"] == name
            np.testing.assert_allclose(numbers_of(output), [*values, np.nan], rtol=1e-6)
            assert output.data["tokens"]["ids"] == [*range(100, 109)]
            assert output.texts == session.tokens
            assert "readout:mood" in output.data["beside"]
            coloured = ["style" in token for token in output.tokens]
            missing = np.isnan(numbers_of(output))
            missing[0] |= name.startswith("norm")
            assert coloured == [not one for one in missing]
    assert "norm of resid_post.1" in session._repr_html_()
    part = Output(session.show(tokens=range(2, 5)).html)
    assert part.texts == session.tokens[2:5]
    assert "Tokens 2 to 4 of 9" in part.plain
    view = session.show()
    view.save(tmp_path / "tokens.html")
    saved = (tmp_path / "tokens.html").read_text(encoding="utf-8")
    assert saved.startswith('<!doctype html>\n<meta charset="utf-8">')
    assert view.html in saved


def test_attention_is_that_of_the_session(session: SessionTensors) -> None:
    expected = session.attention(1, 1)
    output = Output(session.show(attention=(1, 1), tokens=range(3, 9)).html)
    attention = output.data["attention"]
    assert (attention["start"], attention["stop"], attention["name"]) == (3, 8, "head 1 of layer 1")
    output.data = attention
    rows = np.split(numbers_of(output, "weights"), np.cumsum([1, 2, 3, 4]))
    for token, row in enumerate(rows, start=3):
        np.testing.assert_array_equal(row, expected[token, 3 : token + 1])


def test_what_cannot_be_shown_is_refused_with_the_reason(
    session: SessionTensors, subtests: pytest.Subtests
) -> None:
    cases: dict[str, tuple[type[Exception], dict[str, Any]]] = {
        "no tensor resid_post.9 is stored": (NotFound, {"hook": "resid_post.9"}),
        "no tensor readout:none is stored": (NotFound, {"readout": "none"}),
        "channel 4: resid_post.1 has channels 0 to 3": (InvalidRequest, {"channel": 4}),
        r"channel and latent: tokens have one colour": (InvalidRequest, {"channel": 1, "latent": 1}),
        "latent says what is shown; leave hook out": (InvalidRequest, {"hook": "q.1", "latent": 1}),
        "latent 100: sae:res has latents 0 to 99": (InvalidRequest, {"latent": 100}),
        "no tensor sae:other is stored": (NotFound, {"latent": ("other", 1)}),
        r"the probe has the shape \[3\], and resid_post.1 is 4 wide": (InvalidRequest, {"probe": np.ones(3)}),
        "the probe has no direction of resid_post.1; it has embed": (NotFound, {"probe": {"embed": [1]}}),
        "a folder has no stored vectors": (InvalidRequest, {"probe": "mood"}),
        "attn_out.1 is stored as the mean of its rows": (InvalidRequest, {"hook": "attn_out.1"}),
        r"the session has no q\.0": (NotFound, {"attention": (0, 0)}),
        "head 2: layer 1 has heads 0 to 1": (InvalidRequest, {"attention": (1, 2)}),
        "tokens are consecutive": (InvalidRequest, {"tokens": range(0, 8, 2)}),
    }
    for message, (error, choice) in cases.items():
        with subtests.test(message), pytest.raises(error, match=message):
            session.show(**choice)


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    session = open_folder(write_session_folder(tmp_path, [*HOSTILE, "x" * 100_000, "end"]))
    for html in (session._repr_html_(), session.show(attention=(1, 0)).html):
        output = Output(html)
        assert output.texts[: len(HOSTILE)] == [*HOSTILE]
        assert {tag for tag, _ in output.tags} <= ELEMENTS
        assert sum(tag == "script" for tag, _ in output.tags) == 1
        assert not [one for _, found in output.tags for one in found if one.startswith("on") or one == "src"]
        assert not re.search(r"https?:|//\w|@import|url\(|fetch\(|XMLHttp|\beval\b", without_comments(html))
        assert len(html) < 100_000


def without_comments(html: str) -> str:
    return re.sub(r"/\*.*?\*/|^\s*//.*?$|http://www.w3.org/\S*", "", html, flags=re.DOTALL | re.MULTILINE)


def test_a_matrix_shows_its_shape_labels_and_norms() -> None:
    def matrix(features: Any, labels: Any) -> str:
        count = len(features)
        return Matrix(
            hook="resid_post.1",
            features=features,
            labels=labels,
            groups=np.arange(count) // 2,
            tokens=np.zeros(count, np.int64),
            sample_index=np.arange(count),
            epoch=np.zeros(count, np.int64),
            condition=np.array(["a"] * count),
            session_id=np.array([f"ses_{n}" for n in range(count)]),
            skipped=[Skipped("ses_x", "<img src=x onerror=alert(1)>")],
        )._repr_html_()

    features = np.zeros((6, 3), np.float32)
    features[:, 0] = np.arange(6)
    shown = Output(matrix(features, np.array([1, 1, 0, 1, 1, np.nan])))
    for text in ("features [6, 3] float32", "6 sessions", "3 groups", "norms of 6 rows: 0 to 5",
                 "<img src=x onerror=alert(1)>", "no label", "1 sessions were skipped"):  # fmt: skip
        assert text in shown.plain
    assert {tag for tag, _ in shown.tags} <= ELEMENTS
    path = next(found["d"] for tag, found in shown.tags if tag == "path")
    assert len(re.findall("[ML]", path or "")) == 6
    large = matrix(np.ones((10_000, 3), np.float16), np.array(["</td><script>"] * 10_000))
    assert "norms of 256 of 10000 rows" in large
    assert len(large) < 30_000
    assert {tag for tag, _ in Output(large).tags} <= ELEMENTS
    assert "features [0, 3]" in matrix(np.zeros((0, 3), np.float32), np.zeros(0))
