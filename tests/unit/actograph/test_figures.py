"""Figures: their titles say what was read, and any token can be drawn."""

from actograph.contract.analyses import LensGrid, LensResult
from actograph.report.analysis_figures import figures_of

ROWS = {"rows": 9, "next_is_top": 0.5, "agreement": 0.25}


def test_the_figures_of_a_lens_draw_any_token_and_say_what_was_read() -> None:
    grid = LensGrid(
        session_id="ses_" + "1" * 32,
        positions=[0, 1],
        inputs=["$x$", "\n"],
        tokens={"resid_post.0": ["中文", " \u0e01"], "resid_post.1": ["<b>", "\x00"]},
        probabilities={"resid_post.0": [0.5, 1.0], "resid_post.1": [0.0, 0.25]},
    )
    result = LensResult(
        spec={"positions": "generated"},
        sessions=2,
        hooks={"resid_post.0": ROWS, "resid_post.1": ROWS},
        grid=grid,
    )
    drawn, curves = figures_of(result, "mine-")
    assert [drawn.name, curves.name] == ["mine-lens_grid", "mine-lens"]
    assert "2 positions of session ses_1111" in drawn.title
    assert "9 rows of each hook, positions generated of 2 sessions" in curves.title
    assert drawn.png.startswith(b"\x89PNG")
    assert "resid_post.1" in str(result)
