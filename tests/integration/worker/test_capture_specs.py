"""Capture specs from the engine to the stored session, against everything that the model computed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph import tensor_files
from actograph.contract import hooks as grammar
from actograph.contract.errors import ActographError, CaptureFailed
from actograph.contract.specs import CaptureSpec, SamplingSpec
from storage.artifacts.store import ArtifactStore, open_store
from storage.samples import LeasedSample
from storage.session_files import SessionReader
from worker.engine.generate import Engine
from worker.engine.model import load_model
from worker.engine.requests import Generation, GenerationRequest
from worker.recording import Provenance, Recorded, UnitRecorder

pytestmark = pytest.mark.integration

PROMPTS = ("Tom has 34 books and Mia has 57 books. How many do they have in total?", "The cat", "12+13?")
SAMPLING = SamplingSpec(max_tokens=20)
POINTS = ["embed", "resid_post.1", "mlp_in.0", "logits"]


@dataclass
class Captured:
    """The sessions of one run, one per prompt."""

    store: ArtifactStore
    generations: list[Generation]
    outcomes: list[Recorded | ActographError]

    def reader(self, sample: int) -> SessionReader:
        outcome = self.outcomes[sample]
        assert isinstance(outcome, Recorded), outcome
        return SessionReader(self.store, outcome.session_id)

    def tensor(self, sample: int, name: str) -> torch.Tensor:
        reader = self.reader(sample)
        piece = reader.rows(name, 0, reader.tensor_info(name).shape[0])
        return torch.from_numpy(tensor_files.value_array(piece.dtype, piece.shape, piece.data).copy())


Capture = Callable[..., Captured]


@pytest.fixture(scope="module")
def engine(shared: Path) -> Engine:
    torch.set_num_threads(1)
    return Engine(load_model(str(shared / "models" / "tiny-qwen3"), device="cpu", name="tiny-qwen3"))


@pytest.fixture
def capture(engine: Engine, tmp_path: Path) -> Capture:
    """Run a capture spec over `PROMPTS` in one batch and store it."""

    def run(*, texts: tuple[str, ...] = PROMPTS, **fields: Any) -> Captured:
        spec = CaptureSpec.model_validate({"hooks": POINTS} | fields)
        names = grammar.expand(spec.points, spec.layers, spec.hooks, engine.structure)
        origin = Provenance(
            structure=engine.structure, tokenizer_sha256="t", template_sha256=None, capture=spec,
            hooks=names, sampling=SAMPLING,
        )  # fmt: skip
        leases = [
            LeasedSample(
                id=f"smp_{i:032x}", job_id="job_" + "1" * 32, sample_index=i, condition="", epoch=0,
                input={}, seed=i, token=1,
            )
            for i in range(len(texts))
        ]  # fmt: skip
        store = open_store((tmp_path / "store").as_uri())
        recorder = UnitRecorder(store, leases, origin)
        requests = [
            GenerationRequest(key=str(i), prompt_ids=tuple(engine.model.tokenizer(text)["input_ids"]), seed=i)
            for i, text in enumerate(texts)
        ]
        generations = engine.generate(
            requests,
            sampling=SAMPLING,
            hooks=names,
            positions=spec.positions,
            dtype=spec.dtype,
            shaping=origin.shaping,
            sink=recorder,
        )
        outcomes = recorder.finish(dict(enumerate(generations)))
        return Captured(store, generations, [outcomes[i] for i in range(len(texts))])

    return run


@pytest.mark.parametrize(("features", "columns"), [({"first": 5}, range(5)), ({"indices": [90, 2]}, [90, 2])])
def test_features_are_columns_and_the_session_says_which(
    capture: Capture, features: dict[str, Any], columns: Any
) -> None:
    whole, part = capture(), capture(features=features)
    for sample in range(len(PROMPTS)):
        part.reader(sample).verify()
        assert part.reader(sample).manifest.capture["features"] == features
        for hook in POINTS:
            got = part.tensor(sample, hook)
            assert torch.equal(got, whole.tensor(sample, hook)[:, list(columns)])
            assert part.reader(sample).tensor_info(hook).shape[1] == len(columns)


def test_a_feature_that_a_raw_module_lacks_fails_the_batch_with_its_width(
    engine: Engine, capture: Capture
) -> None:
    location = next(name for name in engine.structure.module_locations if name.endswith("k_proj.output"))
    with pytest.raises(CaptureFailed, match=rf"{location} has \d+ features .*feature 4999"):
        capture(hooks=[location], features={"first": 5000})
