"""The estimate of what a session stores, tensor by tensor, against what a real model's capture stored.

Rows must agree to the byte. The manifest and headers are text of no fixed length; their bound is stated.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph import plans
from actograph.contract import hooks as grammar
from actograph.contract.specs import CaptureSpec, SamplingSpec
from storage.artifacts.factory import open_store
from storage.samples import LeasedSample
from tests.support.one_turn import one_turn
from worker.engine.engine import Engine
from worker.engine.model.load import load_model
from worker.engine.requests import GenerationRequest
from worker.sample.provenance import Provenance
from worker.sample.recording import BatchRecorder, Recorded
from worker.sample.segments import Markup

pytestmark = pytest.mark.integration

SAMPLING = SamplingSpec(max_tokens=24)
PROMPT = "Tom has 34 books and Mia has 57 books. How many do they have in total?"
#: the manifest and the headers of one session: at most so far from what the estimate takes for them
BESIDE_THE_ROWS = 2048
POSITIONS: list[Any] = [
    "all", "prompt", "generated", "last", "last_prompt", {"stride": 5}, [0, -1, 7], "answer", ["prompt"],
    ["prompt", "answer"],
]  # fmt: skip
FEATURES: list[Any] = [None, {"first": 7}, {"indices": [9, 1, 4]}]
SUMMED: list[dict[str, Any]] = [
    {}, {"reduce": "mean"}, {"stats": True}, {"stats": {"threshold": 2.0, "tensors": False}},
    {"reduce": "max", "stats": True},
]  # fmt: skip


@pytest.fixture(scope="module")
def engine(shared: Path) -> Engine:
    torch.set_num_threads(1)
    return Engine(load_model(str(shared / "models" / "tiny-qwen3"), device="cpu", name="tiny-qwen3"))


Store = Callable[..., tuple[Recorded, CaptureSpec, Sequence[str]]]


@pytest.fixture
def stored(engine: Engine, tmp_path: Path) -> Store:
    """Capture one prompt and store it: what came, the spec, and its hooks."""
    ids = tuple(engine.model.tokenizer(PROMPT)["input_ids"])
    lease = LeasedSample(
        id="smp_" + "1" * 32, job_id="job_" + "1" * 32, sample_index=0, condition="", epoch=0, input={},
        seed=0, token=1,
    )  # fmt: skip

    def run(**fields: Any) -> tuple[Recorded, CaptureSpec, Sequence[str]]:
        spec = CaptureSpec.model_validate(fields)
        names = grammar.expand(spec.points, spec.layers, spec.hooks, engine.structure)
        origin = Provenance(
            structure=engine.structure, tokenizer_sha256="t", template_sha256=None, capture=spec,
            hooks=names, sampling=SAMPLING, markup=Markup(engine.model.tokenizer),
        )  # fmt: skip
        recorder = BatchRecorder(open_store((tmp_path / "store").as_uri()), [lease], origin)
        made = engine.generate(
            [GenerationRequest(key="0", prompt_ids=ids, seed=0)], sampling=SAMPLING, hooks=names,
            positions=origin.positions, dtype=spec.dtype, shaping=origin.shaping, sink=recorder,
        )  # fmt: skip
        outcome = recorder.finish({0: one_turn(made[0], origin.markup)})[0]
        assert isinstance(outcome, Recorded), outcome
        return outcome, spec, names

    return run


def check(engine: Engine, outcome: Recorded, spec: CaptureSpec, names: Sequence[str]) -> None:
    prompt = len(engine.model.tokenizer(PROMPT)["input_ids"])
    generated = outcome.rows + 1 - prompt
    told = plans.tensor_bytes(engine.structure, names, spec, prompt_tokens=prompt, generated_tokens=generated)
    assert told == sum(tensor.nbytes for tensor in outcome.tensors.values())
    whole = plans.stored_bytes(
        engine.structure, names, spec, prompt_tokens=prompt, generated_tokens=generated
    )
    assert abs(whole - sum(file.bytes for file in outcome.files)) < BESIDE_THE_ROWS + 96 * len(
        outcome.tensors
    )


@pytest.mark.covering(3)
@pytest.mark.parametrize("positions", POSITIONS, ids=str)
def test_every_choice_stores_as_many_bytes_as_told(engine: Engine, stored: Store, positions: Any) -> None:
    for features, summed in itertools.product(FEATURES, SUMMED):
        for dtype in ("model", "float16") if summed == {} else ("model",):
            check(
                engine,
                *stored(
                    hooks=["resid_post.1", "mlp_in.0", "logits", "lm_head.input"],
                    positions=positions, features=features, dtype=dtype, **summed,
                ),
            )  # fmt: skip


@pytest.mark.soak
def test_every_module_location_counts_with_its_own_width_and_rows(engine: Engine, stored: Store) -> None:
    locations = engine.structure.module_locations
    widths = {info.width for info in engine.structure.module_tensors.values()}
    assert len(widths) > 3 and set(engine.structure.module_tensors) == set(locations)
    for location in locations:
        check(engine, *stored(hooks=[location]))
    check(engine, *stored(hooks=locations, positions={"stride": 3}))


def test_what_the_head_takes_in_begins_at_the_last_prompt_token(stored: Store, engine: Engine) -> None:
    """It is the last norm's tensor, and yet has fewer rows; alone and beside it."""
    prompt = len(engine.model.tokenizer(PROMPT)["input_ids"])
    for hooks in (["lm_head.input"], ["lm_head.input", "final_norm"]):
        tensors = stored(hooks=hooks)[0].tensors
        assert tensors["lm_head.input"].first_row == prompt - 1
        assert tensors["lm_head.input"].shape == (SAMPLING.max_tokens, engine.structure.hidden_size)
    assert tensors["final_norm"].shape[0] == prompt - 1 + SAMPLING.max_tokens
