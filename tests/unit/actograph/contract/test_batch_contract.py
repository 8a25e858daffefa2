"""Which lines of a batch have the same form, and what the job's spec is for them."""

from typing import Any

import pytest

from actograph.contract.chat_job import BatchInput, line_key, spec_of
from actograph.contract.specs import CaptureSpec, SamplingSpec


def stored(max_tokens: int | None = 8, seed: int = 0, **changes: Any) -> dict[str, Any]:
    changes = {"sampling": SamplingSpec(seed=seed)} | changes
    given = BatchInput(custom_id="a", prompt="Hello", max_tokens=max_tokens, **changes)
    return given.model_dump(mode="json", exclude_none=True)


def test_seed_length_and_text_part_nobody() -> None:
    other = stored(max_tokens=64, seed=7, tags=["mine"], choices=3) | {"prompt": "Bye"}
    assert line_key(stored()) == line_key(other)


def test_what_a_forward_pass_depends_on_parts_them(subtests: pytest.Subtests) -> None:
    for changes in [
        {"capture": CaptureSpec()},
        {"interventions": [{"hook": "resid_post.0", "op": "zero"}]},
        {"sampling": SamplingSpec(temperature=1.0)},
    ]:
        with subtests.test(changes=changes):
            assert line_key(stored()) != line_key(stored(**changes))


def test_a_line_has_its_own_capture() -> None:
    job: dict[str, Any] = {"capture": None, "interventions": [], "sampling": {"max_tokens": 100, "seed": 1}}
    capture = CaptureSpec(layers=[1])
    found = spec_of(job, stored(max_tokens=90, capture=capture))
    assert CaptureSpec.model_validate(found["capture"]) == capture
    assert found["sampling"] == {"max_tokens": 100, "seed": 1}
    assert spec_of(job, stored())["capture"] is None
