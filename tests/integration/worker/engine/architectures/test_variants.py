"""Variants of a prompt have the log probabilities of requests with the same edits, at every point."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from actograph.contract.errors import InterventionFailed, InvalidRequest
from actograph.contract.row_selection import TokenRange
from tests.support.engine_run import generate, read_texts
from tests.support.plain_forward import plain_rows
from worker.engine import variants as reading
from worker.engine.engine import Engine
from worker.engine.messages import (
    Edit,
    Generation,
    Readout,
    ReadoutAt,
    Request,
    RunOptions,
    generation_json,
    generation_of,
    request_json,
    request_of,
    vectors_of,
)

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
#: longer than the windows of all
PROMPT = tuple((7 * i * i + 11 * i + 5) % 500 for i in range(30))
NEXT = (300, 17)
READ = Request(key="read", prompt_ids=PROMPT, seed=0, max_tokens=0, next_tokens=NEXT)


def put(engine: Engine, hook: str, token: int, columns: tuple[int, ...] | None = None) -> Edit:
    width = engine.width_of(hook) if columns is None else len(columns)
    row = np.random.default_rng(token).normal(0, 1, width).astype(np.float32)
    one = TokenRange(start=token, stop=token + 1)
    return Edit(hook=hook, op="replace", vector=row, positions=one, columns=columns)


def one_by_one(engine: Engine, request: Request) -> list[tuple[float, ...] | None]:
    """The log probabilities of requests with the edits of each variant."""
    alone = [replace(request, variants=(), edits=(*request.edits, *variant)) for variant in request.variants]
    return [one.next_logprobs for one in read_texts(engine, alone)]


def assert_alike(engine: Engine, request: Request) -> None:
    (made,) = read_texts(engine, [request])
    assert made.error is None and made.variant_logprobs is not None
    np.testing.assert_allclose(made.variant_logprobs, one_by_one(engine, request), atol=1e-4)  # type: ignore[arg-type]
    (base,) = read_texts(engine, [replace(request, variants=())])
    np.testing.assert_allclose(made.next_logprobs, base.next_logprobs, atol=1e-4)  # type: ignore[arg-type]
    apart = np.abs(np.array(made.variant_logprobs) - made.next_logprobs).max(1)  # type: ignore[operator]
    assert (apart > 1e-3).sum() >= len(apart) // 3, "the edits changed nothing"  # windows hide some


def floats(engine: Engine) -> list[str]:
    """All hooks of numbers that can be replaced."""
    structure = engine.structure
    return [name for name, info in structure.hooks.items() if info.dtype.startswith(("float", "bfloat"))]


def test_variants_are_requests_with_their_edits(architecture: str, engine_of: EngineOf) -> None:
    engine = engine_of(architecture)
    assert engine.forwards.varies(RunOptions()) is (engine.forwards.reason is None)
    if engine.forwards.reason is not None:
        (refused,) = read_texts(engine, [replace(READ, variants=((put(engine, "resid_pre.0", 3),),))])
        assert isinstance(refused.error, InvalidRequest)
        return
    hooks = floats(engine)
    variants = [(put(engine, hook, token),) for hook in hooks for token in (2, 25)]
    variants += [
        (put(engine, "resid_pre.1", 20), put(engine, "resid_post.2", 29)),
        (put(engine, "mlp_out.0", 8, (0, 3)), put(engine, "mlp_out.0", 9, (0, 3))),
        (put(engine, "mlp_out.0", 8, (5, 1)), put(engine, "embed", 29)),
    ]  # fmt: skip
    own = Edit(
        hook="resid_post.0", op="add", vector=np.ones(engine.structure.hidden_size, np.float32),
        positions=TokenRange(start=5, stop=27),
    )  # fmt: skip
    for edits in ((), (own,)):
        assert_alike(engine, replace(READ, edits=edits, variants=tuple(variants)))


@pytest.fixture(scope="module")
def engine(engine_of: EngineOf) -> Engine:
    return engine_of("qwen3")


def grid(engine: Engine, tokens: Sequence[int] = (2, 12, 25)) -> Request:
    hooks = [f"{point}.{layer}" for point in ("resid_pre", "mlp_out") for layer in range(3)]
    return replace(READ, variants=tuple((put(engine, hook, token),) for hook in hooks for token in tokens))


def test_few_tokens_of_a_pass_and_little_memory_change_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Layers whose outputs do not fit are run again, and variants that are too many go to further passes."""
    asked = grid(engine)
    cases = {"_MOST_HELD": (0, 4 * 32 * len(PROMPT), 8 * 32 * len(PROMPT)), "_MOST_SCORES": (1, 4 * 30 * 40)}
    for name, sizes in cases.items():
        for size in sizes:
            with subtests.test(name=name, size=size), monkeypatch.context() as patch:
                patch.setattr(reading, name, size)
                assert_alike(engine, asked)


def test_variants_beside_texts_that_are_written(engine: Engine) -> None:
    """Requests beside them have the same tokens as without them, and they the same numbers."""
    asked = grid(engine)
    text = Request(key="text", prompt_ids=PROMPT[:9], seed=3, max_tokens=20)
    chat = Request(key="chat", prompt_ids=PROMPT[3:20], seed=4, max_tokens=5, priority=True)
    (alone,) = read_texts(engine, [asked])
    before = [generate(engine, [one])[0].generated_ids for one in (text, chat)]
    first, other, written, urgent = generate(engine, [asked, replace(asked, edits=()), text, chat])
    assert [written.generated_ids, urgent.generated_ids] == before
    for one in (first, other):
        np.testing.assert_allclose(one.variant_logprobs, alone.variant_logprobs, atol=1e-5)  # type: ignore[arg-type]
    assert alone.cached_tokens == sum(variant[0].positions.start for variant in asked.variants) - len(PROMPT)  # type: ignore[union-attr]


def test_what_cannot_be_a_variant_is_refused(engine: Engine, subtests: pytest.Subtests) -> None:
    edit = put(engine, "resid_pre.1", 4)
    long = Request(key="long", prompt_ids=(5,) * 140, seed=0, max_tokens=0, next_tokens=NEXT)
    cases = {
        "it writes": replace(READ, variants=((edit,),), max_tokens=2),
        "no metric": replace(READ, variants=((edit,),), next_tokens=()),
        "adds": replace(READ, variants=((replace(edit, op="add"),),)),
        "no row": replace(READ, variants=((replace(edit, vector=None),),)),
        "all tokens": replace(READ, variants=((replace(edit, positions="all"),),)),
        "no such token": replace(READ, variants=((put(engine, "resid_pre.1", 30),),)),
        "twice": replace(READ, variants=((edit, edit),)),
        "nothing": replace(READ, variants=((),)),
        "width": replace(READ, variants=((replace(edit, vector=np.ones(3, np.float32)),),)),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "STEP_TOKENS", 64)
        cases["early"] = replace(long, variants=((put(engine, "resid_pre.1", 4),),))
        for title, request in cases.items():
            with subtests.test(case=title):
                (made,) = generate(engine, [request])
                assert isinstance(made.error, InvalidRequest), made.error
    for options in (RunOptions(repeatable=True), RunOptions(traced=True)):
        (made,) = read_texts(engine, [replace(READ, variants=((edit,),))], options=options)
        assert isinstance(made.error, InvalidRequest) and "variants" in made.error.message


def test_values_at_every_point_are_those_of_requests_with_the_edits(
    architecture: str, engine_of: EngineOf, subtests: pytest.Subtests
) -> None:
    """Early and late tokens, before and after the edits, and what only the last token has."""
    engine = engine_of(architecture)
    asked = replace(grid(engine), next_tokens=())
    if engine.forwards.reason is not None:
        asked = replace(asked, variants=())
    points = ("embed", "attn_out.1", "resid_post.2", "final_norm", "logits")
    hooks = [name for name in points if name in floats(engine)]
    for hook in hooks:
        for token in (len(PROMPT) - 1, 13):
            vector = np.cos(np.arange(engine.width_of(hook), dtype=np.float32))
            readout = Readout(name="readout:v", hook=hook, sha256="", bias=2.0, vector=vector)
            request = replace(asked, value_at=ReadoutAt(readout=readout, token=token))
            with subtests.test(hook=hook, token=token):
                (made,) = read_texts(engine, [request])
                location = engine.hooks.edited_at(hook)
                if engine.structure.module_tensors[location].tail_only and token < len(PROMPT) - 1:
                    assert isinstance(made.error, InvalidRequest)
                    continue
                assert made.error is None and made.value is not None and made.variant_values is not None
                due = plain_rows(engine, list(PROMPT), [hook])[hook][-1 if hook == "logits" else token]
                product = float(due.double() @ torch.from_numpy(vector).double())
                assert made.value == pytest.approx(product + 2, abs=1e-3)
                alone = [
                    replace(request, variants=(), edits=edits, value_at=request.value_at)
                    for edits in request.variants
                ]
                values = [one.value for one in read_texts(engine, alone)]
                found = [made.value if one is None else one for one in made.variant_values]
                np.testing.assert_allclose(found, values, atol=2e-4)  # type: ignore[arg-type]


def test_a_request_crosses_to_the_engine_with_its_variants(engine: Engine) -> None:
    columns = (put(engine, "mlp_out.0", 8, (5, 1)), put(engine, "embed", 29))
    own = put(engine, "resid_pre.1", 3)
    readout = Readout(name="readout:v", hook="embed", sha256="", vector=np.arange(32, dtype=np.float32))
    asked = grid(engine)
    request = replace(
        asked, edits=(own,), variants=(columns, *asked.variants), value_at=ReadoutAt(readout=readout, token=4)
    )
    sent = json.loads(json.dumps(request_json(request)))
    came = request_of(sent, vectors_of(request))
    assert (came.prompt_ids, came.next_tokens) == (request.prompt_ids, request.next_tokens)
    for one, other in zip(came.variants, request.variants, strict=True):
        for edit, wanted in zip(one, other, strict=True):
            assert (edit.hook, edit.columns, edit.positions) == (
                wanted.hook,
                wanted.columns,
                wanted.positions,
            )
            np.testing.assert_array_equal(edit.vector, wanted.vector)  # type: ignore[arg-type]
    np.testing.assert_array_equal(came.edits[0].vector, own.vector)  # type: ignore[arg-type]
    assert came.value_at is not None and came.value_at.token == 4
    np.testing.assert_array_equal(came.value_at.readout.vector, readout.vector)  # type: ignore[arg-type]
    made = Generation(
        key="", prompt_ids=PROMPT, generated_ids=(), finish_reason="stop", value=1.5,
        variant_logprobs=((-1.0, -2.0), (-3.0, -4.0)), variant_values=(None, 2.5),
    )  # fmt: skip
    assert generation_of(json.loads(json.dumps(generation_json(made))), PROMPT) == made


def test_numbers_that_are_none_fail_the_request_alone(engine: Engine) -> None:
    bad = replace(put(engine, "resid_pre.1", 4), vector=np.full(32, np.inf, np.float32))
    failed, good = read_texts(engine, [replace(READ, variants=((bad,),)), grid(engine)])
    assert isinstance(failed.error, InterventionFailed)
    assert good.error is None and good.variant_logprobs is not None
