"""Memory that runs out in the middle of a pass costs nothing but time: tokens and rows stay the same."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import AutoTokenizer, MambaConfig, PreTrainedConfig, Qwen3NextConfig

from tests.support.architectures import COMMON, IDS, random_model
from tests.support.stream_run import StreamRun, ask, prompts, stream_model
from worker.engine.capture.pool import Block
from worker.engine.capture.record import LayoutRows
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture, Edit, Request
from worker.engine.stream.choice import TokenChoice
from worker.engine.structure.structure import discover

#: models whose passes leave something behind: states that change in place beside keys and values
RECURRENT: dict[str, Callable[[], PreTrainedConfig]] = {
    "mamba": lambda: MambaConfig(**IDS, hidden_size=32, num_hidden_layers=3, state_size=8),
    "qwen3_next": lambda: Qwen3NextConfig(
        **COMMON | {"num_hidden_layers": 2}, layer_types=["linear_attention", "full_attention"],
        head_dim=8, num_experts=7, num_experts_per_tok=2,
        moe_intermediate_size=16, shared_expert_intermediate_size=24, linear_num_value_heads=4,
        linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    ),
}  # fmt: skip
DEPTHS = ("embedding", "middle layer", "head", "choice")
#: passes that fail: the first one, which reads prompts, and a later one
FAILED = (0, 7)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is collected: all the tests' models would be looked at after each failure."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def _model(shared: Path, name: str) -> ModelHooks:
    if name not in RECURRENT:
        return stream_model(shared, name)
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
    return discover(random_model(RECURRENT[name](), tokenizer, name))


@contextmanager
def _running_out(hooks: ModelHooks, depth: str, at: int, patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Memory runs out once: at the given depth of pass `at`. Yields the passes that got so far."""
    seen: list[int] = []

    def maybe() -> None:
        seen.append(len(seen))
        if seen[-1] == at:
            raise torch.OutOfMemoryError("pretended")

    if depth == "choice":
        real = TokenChoice.choose

        def failing(self: Any, *args: Any) -> Any:
            maybe()
            return real(self, *args)

        with patch.context() as own:
            own.setattr(TokenChoice, "choose", failing)
            yield seen
        return
    hf: Any = hooks.model.hf
    module = {
        "embedding": hf.get_input_embeddings(),
        "middle layer": hf.get_submodule(f"{hooks.model.layers_path}.1"),
        "head": hf.get_output_embeddings(),
    }[depth]
    handle = module.register_forward_hook(lambda *_: maybe())
    try:
        yield seen
    finally:
        handle.remove()


def _requests(hooks: ModelHooks, *, capture: bool) -> list[Request]:
    """Short prompts, so that a pass that runs again has the same shape; with edits and drawn tokens."""
    plan = Capture(hooks=("resid_post.0", "resid_post.1", "lm_head.output")) if capture else None
    summed = Capture(hooks=("resid_post.1",), reduce="mean") if capture else None
    vector = torch.randn(32, generator=torch.Generator().manual_seed(1)).numpy()
    edits = (Edit(hook="resid_post.0", op="add", vector=vector, coefficient=0.5),)
    a, b = prompts((9, 5), vocabulary=400)
    return [ask("a", a, 8, capture=plan, edits=edits, top_logprobs=2), ask("b", b, 8, capture=summed)]


def _check(hooks: ModelHooks, kind: Literal["packed", "traced"], subtests: pytest.Subtests) -> None:
    patch = pytest.MonkeyPatch()
    for capture in (False, True):
        items = _requests(hooks, capture=capture)
        alone = {item.key: StreamRun([item]).run(hooks, kind) for item in items}
        for depth in DEPTHS:
            for at in FAILED:
                for item in items:  # alone, so that its passes have the same shapes
                    with subtests.test(depth=depth, failed=at, capture=capture, key=item.key):
                        run, due = StreamRun([item]), alone[item.key]
                        with _running_out(hooks, depth, at, patch) as seen:
                            run.run(hooks, kind)
                        assert len(seen) > at + 1 and not run.errors and run.statistics.retries == 1
                        assert run.made[item.key] == due.made[item.key]
                        assert run.chunks.keys() == due.chunks.keys()
                        for hook in run.chunks.get(item.key, ()):
                            assert torch.equal(run.rows(item.key, hook), due.rows(item.key, hook)), hook
                with subtests.test(depth=depth, failed=at, capture=capture, key="both at once"):
                    run = StreamRun(items)
                    with _running_out(hooks, depth, at, patch):
                        run.run(hooks, kind, most=2)
                    assert not run.errors
                    for item in items:
                        assert run.ids(item.key) == alone[item.key].ids(item.key)
                        for hook in run.chunks.get(item.key, ()):
                            torch.testing.assert_close(
                                run.rows(item.key, hook),
                                alone[item.key].rows(item.key, hook),
                                atol=1e-4,
                                rtol=1e-4,
                            )


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_packed_pass_runs_again_as_if_nothing_had_happened(
    shared: Path, name: str, subtests: pytest.Subtests
) -> None:
    _check(_model(shared, name), "packed", subtests)


@pytest.mark.parametrize("name", ["llama", "gemma2", *RECURRENT])
def test_a_traced_pass_runs_again_as_if_nothing_had_happened(
    shared: Path, name: str, subtests: pytest.Subtests
) -> None:
    _check(_model(shared, name), "traced", subtests)


def test_a_request_that_cannot_run_again_fails(shared: Path) -> None:
    """Memory runs out for good at a later token: the first tokens run again, and the request ends."""
    hooks, left = stream_model(shared, "llama"), [6]

    def full(*_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise torch.OutOfMemoryError("pretended")

    (prompt,) = prompts((9,))
    run = StreamRun([ask("a", prompt, 12, capture=Capture(hooks=("resid_post.1",)))])
    hf: Any = hooks.model.hf
    handle = hf.get_output_embeddings().register_forward_hook(full)
    try:
        run.run(hooks, "traced")
    finally:
        handle.remove()
    assert run.made["a"].finish_reason == "error" and "does not fit" in str(run.errors["a"])


@pytest.mark.parametrize("kind", ["packed", "traced"])
def test_rows_that_cannot_be_kept_fail_their_request_alone(
    shared: Path, kind: Literal["packed", "traced"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum that runs out of memory is no failure of the pass."""
    hooks, real = stream_model(shared, "llama"), LayoutRows.note
    calls: list[LayoutRows] = []

    def note(self: LayoutRows, tokens: Sequence[int]) -> list[Block]:
        calls.append(self)
        if len(calls) > 4 and self is calls[0]:
            raise MemoryError
        return real(self, tokens)

    items = _requests(hooks, capture=True)
    due = StreamRun(items).run(hooks, kind)
    monkeypatch.setattr(LayoutRows, "note", note)
    run = StreamRun(items).run(hooks, kind)
    assert list(run.errors) == ["a"] and run.ids("b") == due.ids("b")
    torch.testing.assert_close(run.rows("b", "resid_post.1"), due.rows("b", "resid_post.1"))
