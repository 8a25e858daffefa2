"""Latents of SAEs in the pass that computes the rows: of every token, member by member, in both forwards."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actograph.contract.errors import OutOfDeviceMemory
from actograph.contract.saes import NewSae
from actograph.contract.specs import SamplingSpec
from storage.saes import sae_files
from tests.support.engine_run import PROMPTS, KeepingSink, generate, requests_for
from tests.support.saes import encoded, sae_tensors, write_sae
from tests.support.token_choosers import rule_for
from worker.engine.engine import Engine
from worker.engine.messages import Capture, Edit, Encoding, Request, RunOptions

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
D_SAE = 48
HOOK = "resid_post.1"
SAMPLING = SamplingSpec(max_tokens=9, temperature=1.0)


class Saes:
    """SAEs of an engine's residual stream, written to a folder."""

    def __init__(self, engine: Engine, root: Path) -> None:
        self._width, self._root = engine.width_of(HOOK), root

    def encoding(
        self, architecture: str = "standard", *, hook: str = HOOK, top: int = 7, seed: int = 0, **changes: Any
    ) -> Encoding:
        folder = f"{architecture}-{seed}"
        sizes = {"d_in": self._width, "d_sae": D_SAE, "seed": seed}
        write_sae(self._root / folder, architecture, **sizes, **changes)
        found = sae_files.read(NewSae(name="s", path=folder), [str(self._root)])
        more = {"config": found.config, "sha256": folder, "path": str(found.weights)}
        return Encoding(name=f"sae:{folder}", hook=hook, top=top, **more)

    def due(self, rows: torch.Tensor, encoding: Encoding) -> Any:
        """All latents of rows, by the formulas."""
        seed = int(encoding.sha256.rpartition("-")[2])
        architecture = encoding.config.architecture
        tensors = sae_tensors(architecture, d_in=self._width, d_sae=D_SAE, seed=seed)
        return encoded(rows.float().numpy(), tensors, encoding.config.model_dump())


@pytest.fixture
def saes(engine_of: EngineOf, tmp_path: Path) -> Saes:
    return Saes(engine_of("tiny-qwen3"), tmp_path)


def run(engine: Engine, requests: list[Request], **options: Any) -> KeepingSink:
    sink = KeepingSink()
    for made in generate(engine, requests, sampling=SAMPLING, sink=sink, **options):
        assert made.error is None, made.error
    return sink


def latents(sink: KeepingSink, index: int, encoding: Encoding) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers and activations; the tokens of both are those of the rows."""
    parts = [f"{encoding.name}.{part}" for part in ("indices", "values")]
    for one, other in zip(*(sink.chunks[index][part] for part in parts), strict=True):
        assert (one.first_row, one.tokens, one.count) == (other.first_row, other.tokens, other.count)
    return sink.rows(index, parts[0]), sink.rows(index, parts[1])


def assert_largest(numbers: torch.Tensor, values: torch.Tensor, due: Any) -> None:
    """They are the largest activations, and no more than are active."""
    count, exact = values.shape[1], {"atol": 1e-5 * max(1.0, due.max()), "rtol": 1e-5}
    np.testing.assert_allclose(values, -np.sort(-due, axis=1)[:, :count], **exact)
    active = numbers.numpy() >= 0
    rows, _ = np.nonzero(active)
    np.testing.assert_allclose(values.numpy()[active], due[rows, numbers.numpy()[active]], **exact)
    assert (active.sum(1) == np.minimum((due > 0).sum(1), count)).all()


def test_latents_are_those_of_the_rows_that_the_hook_shows(
    engine_of: EngineOf,
    saes: Saes,
    as_traced: Callable[[Engine, bool], AbstractContextManager[None]],
    subtests: pytest.Subtests,
) -> None:
    """Of all architectures, with an edit before them, packed and traced, and as often as there are rows."""
    engine = engine_of("tiny-qwen3")
    encodings = [
        saes.encoding(),
        saes.encoding("topk", hook="resid_post.0"),
        saes.encoding("jumprelu", top=D_SAE),
        saes.encoding("gated", hook="attn_out.1", normalize_activations="layer_norm"),
        saes.encoding("standard", seed=1, hook="final_norm", top=2),
    ]
    hooks = tuple(dict.fromkeys(encoding.hook for encoding in encodings))
    capture = Capture(hooks=hooks, encodings=tuple(encodings), dtype="bfloat16")
    edit = Edit(hook=HOOK, op="scale", coefficient=-1.5)
    asked = [replace(one, capture=capture, edits=(edit,)) for one in requests_for(engine, PROMPTS)]
    exact = [replace(one, capture=replace(capture, dtype="float32", encodings=())) for one in asked]
    rows = run(engine, exact)
    for traced in (False, True):
        with as_traced(engine, traced), subtests.test(traced=traced):
            sink = run(engine, asked)
            for index, request in enumerate(asked):
                for encoding in encodings:
                    numbers, values = latents(sink, index, encoding)
                    shown = rows.rows(index, encoding.hook)
                    assert len(values) == len(shown) == len(request.prompt_ids) + SAMPLING.max_tokens - 1
                    assert_largest(numbers, values, saes.due(shown, encoding))
                assert sink.rows(index, HOOK).dtype == torch.bfloat16, "of the hooks alone"


def test_members_differ_in_one_thing_each(engine_of: EngineOf, saes: Saes) -> None:
    engine = engine_of("tiny-qwen3")
    base = Capture(hooks=(), encodings=(saes.encoding(),))
    (one,) = base.encodings
    captures = {
        "as it is": base,
        "sae": replace(base, encodings=(saes.encoding(seed=1),)),
        "architecture": replace(base, encodings=(saes.encoding("jumprelu"),)),
        "top": replace(base, encodings=(replace(one, top=3),)),
        "hook": replace(base, encodings=(replace(one, hook="resid_post.0"),)),
        "two": replace(base, encodings=(one, saes.encoding("gated"))),
        "a hook besides": replace(base, hooks=("mlp_in.1",)),
        "positions": replace(base, positions="generated"),
        "last": replace(base, positions="last"),
        "prompt": replace(base, positions="prompt"),
        "none": None,
        "again": base,
    }
    asked = [
        replace(request, capture=capture)
        for request, capture in zip(requests_for(engine, PROMPTS * 3), captures.values(), strict=False)
    ]
    asked.append(replace(asked[0], rule=rule_for(asked[0].prompt_ids, [0, 3, -1, 20])))
    together = run(engine, asked, options=RunOptions(slots=5))
    for index, request in enumerate(asked):
        if request.capture is None:
            assert index not in together.chunks
            continue
        alone = run(engine, [request])
        assert together.chunks[index].keys() == alone.chunks[0].keys()
        for encoding in request.capture.encodings:
            numbers, values = latents(together, index, encoding)
            own_numbers, own_values = latents(alone, 0, encoding)
            np.testing.assert_allclose(values, own_values, atol=1e-4, rtol=1e-4)
            apart = (own_values[:, :-1] - own_values[:, 1:]).abs() > 1e-3  # of equal ones any may be first
            clear = torch.nn.functional.pad(apart, (1, 0), value=True)
            clear[:, :-1] &= apart
            clear[:, -1] = False
            assert torch.equal(numbers[clear], own_numbers[clear])
        chunks, own = (next(iter(s.chunks[i].values())) for s, i in ((together, index), (alone, 0)))
        assert [c.tokens for c in chunks] == [c.tokens for c in own]
        assert [c.first_row for c in chunks] == [c.first_row for c in own]


def test_a_shared_prefix_is_encoded_once(engine_of: EngineOf, saes: Saes) -> None:
    """The choices of one prompt, with hooks and two SAEs, whose blocks all of them share."""
    engine = engine_of("tiny-qwen3")
    encodings = (saes.encoding(), saes.encoding("topk", hook="resid_post.0"))
    capture = Capture(hooks=("resid_post.1", "resid_post.0"), encodings=encodings)
    (first,) = requests_for(engine, [" ".join(PROMPTS[:3] * 3)])
    asked = [replace(first, seed=seed, capture=capture) for seed in range(4)]
    sink, whole = KeepingSink(), generate(engine, asked[:1], sampling=SAMPLING)
    made = generate(engine, asked, sampling=SAMPLING, sink=sink)
    assert whole[0].cached_tokens == 0 and max(one.cached_tokens for one in made) >= 64
    for index in range(4):
        for encoding in encodings:
            due = saes.due(sink.rows(index, encoding.hook), encoding)
            assert_largest(*latents(sink, index, encoding), due)


def test_latents_can_repeat_bit_for_bit(engine_of: EngineOf, saes: Saes) -> None:
    engine = engine_of("tiny-qwen3")
    capture = Capture(hooks=(), encodings=(saes.encoding(), saes.encoding("gated")))
    asked = [replace(one, capture=capture) for one in requests_for(engine, PROMPTS)]
    options = RunOptions(repeatable=True)
    together = run(engine, asked, options=options)
    for index, request in enumerate(asked):
        alone = run(engine, [request], options=options)
        for name in together.chunks[index]:
            assert torch.equal(together.rows(index, name), alone.rows(0, name)), name


def test_an_sae_that_can_never_fit_is_refused_with_its_size(engine_of: EngineOf, saes: Saes) -> None:
    engine = engine_of("tiny-qwen3")
    one = saes.encoding()
    large = replace(one, config=one.config.model_copy(update={"d_sae": 1 << 26}))
    asked = [
        replace(request, capture=Capture(hooks=(), encodings=(encoding,)))
        for request, encoding in zip(requests_for(engine, PROMPTS), (one, large), strict=False)
    ]
    sink = KeepingSink()
    fine, refused = generate(engine, asked, sampling=SAMPLING, sink=sink)
    assert fine.error is None and len(sink.chunks[0]) == 2
    assert isinstance(refused.error, OutOfDeviceMemory)
    assert "a block of rows with its SAEs does not fit" in str(refused.error)
    assert refused.error.details is not None and refused.error.details["sae_bytes"] > 1 << 32


def test_an_sae_of_another_width_fails_its_request_alone(engine_of: EngineOf, saes: Saes) -> None:
    engine = engine_of("tiny-qwen3")
    wrong = replace(saes.encoding(), hook="logits")
    asked = [
        replace(request, capture=Capture(hooks=(), encodings=(encoding,)))
        for request, encoding in zip(requests_for(engine, PROMPTS), (saes.encoding(), wrong), strict=False)
    ]
    fine, refused = generate(engine, asked, sampling=SAMPLING, sink=KeepingSink())
    assert fine.error is None
    assert "the SAE takes rows of" in str(refused.error)
