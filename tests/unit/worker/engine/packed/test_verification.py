"""Verification of packed passes: long texts in one pack equal whole forwards, or the reason is given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.attention.flex_attention as flex_module
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    sliding_window_causal_mask_function,
    sliding_window_overlay,
)
from transformers.models.llama.modeling_llama import LlamaAttention

from tests.support.architectures import COMMON, SWITCHING, random_model
from tests.support.plain_forward import plain_rows
from tests.support.stream_run import StreamRun, ask, prompts
from worker.engine.attention_masks import Foreign, UnknownAttention, Windowed, arena_mask
from worker.engine.capture.budget import Budget
from worker.engine.forwards import Forwards
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture, RunOptions
from worker.engine.model.load import wrap_model
from worker.engine.packed import flex, verification
from worker.engine.packed.forward import PackedForward
from worker.engine.packed.verification import texts_for, verify
from worker.engine.structure.structure import discover
from worker.engine.traced.forward import TracedForward


@pytest.fixture
def hooks_of(shared: Path) -> Callable[[Any], ModelHooks]:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")

    def make(config: Any) -> ModelHooks:
        if isinstance(config, torch.nn.Module):
            return discover(wrap_model(config, tokenizer, name="own"))  # type: ignore[arg-type]
        return discover(random_model(config, tokenizer, config.model_type))

    return make


@pytest.mark.parametrize("name", SWITCHING)
def test_a_model_that_changes_at_a_number_of_tokens(name: str, hooks_of: Callable[[Any], ModelHooks]) -> None:
    """Rows and tokens on both sides of it are those of a whole forward, with forks, chunks and neighbours."""
    switching = SWITCHING[name]
    hooks = hooks_of(switching.config())
    forwards = Forwards(hooks)
    assert (forwards.reason is None) == (switching.refused is None), forwards.reason
    assert switching.refused is None or switching.refused in str(forwards.reason)
    forward = forwards.open(RunOptions()).forward
    assert isinstance(forward, PackedForward if switching.refused is None else TracedForward)
    last = hooks.structure.num_layers - 1
    plan = Capture(hooks=("resid_post.0", f"resid_post.{last}"))
    (head,) = prompts((70,), vocabulary=500)
    given = [*prompts((20, 44, 100), seed=2, vocabulary=500), *(head + tail for tail in prompts((1, 9)))]
    items = [ask(f"r{i}", prompt, 10, capture=plan) for i, prompt in enumerate(given)]
    run = StreamRun(items, {"r1": 2})
    run.run(hooks, "packed" if switching.refused is None else "traced", most=4, step_tokens=48)
    assert not run.errors and (switching.refused is not None or run.statistics.shared == 2 * 64)
    for item in items:
        ids = item.prompt_ids + run.ids(item.key)
        for hook, due in plain_rows(hooks, ids[:-1], plan.hooks).items():
            torch.testing.assert_close(run.rows(item.key, hook), due, atol=1e-4, rtol=1e-3, msg=hook)
        with torch.inference_mode():
            logits = hooks.model.hf(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits[0]
        assert run.ids(item.key) == tuple(logits[len(item.prompt_ids) - 1 :].argmax(-1).tolist())


def test_the_mask_decides(subtests: pytest.Subtests) -> None:
    """Causal masks with and without windows, however they are put together; no others."""
    overlay = sliding_window_overlay(5)

    def own(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return key <= query

    for function, due in (
        (causal_mask_function, None),
        (sliding_window_causal_mask_function(5), Windowed(5)),
        (and_masks(causal_mask_function, overlay), Windowed(5)),
        (and_masks(sliding_window_causal_mask_function(9), overlay), Windowed(5)),
        (overlay, Foreign("its attention is not causal")),
        (bidirectional_mask_function, Foreign("its mask is made by bidirectional_mask_function")),
        (
            and_masks(causal_mask_function, own),
            Foreign("its mask is made by test_the_mask_decides"),
        ),
    ):
        with subtests.test(due=due):
            assert arena_mask(mask_function=function) == due
    assert isinstance(
        arena_mask(mask_function=causal_mask_function, attention_mask=torch.ones(1, 3)), Foreign
    )


class _SpanConfig(LlamaConfig):
    model_type = "spanning_llama"
    attn_span: int = 90


class _Spanning(LlamaForCausalLM):
    """It counts the tokens that it is given, and halves the embeddings of those after `attn_span`."""

    config_class = _SpanConfig

    def forward(
        self,
        input_ids: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        logits_to_keep: Any = 0,
        **given: Any,
    ) -> Any:
        given |= {"position_ids": position_ids, "past_key_values": past_key_values}
        embedded = self.model.embed_tokens(input_ids)
        embedded[:, self.config.attn_span :] *= 0.5
        return super().forward(inputs_embeds=embedded, logits_to_keep=logits_to_keep, **given)


_Spanning.__name__ = "LlamaForCausalLM"  # transformers' pipelines know their models by name


def _spanning(span: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return _Spanning(_SpanConfig(**COMMON, attn_span=span)).eval()


def test_a_switch_that_no_mask_shows_is_found_by_its_number(
    hooks_of: Callable[[Any], ModelHooks], subtests: pytest.Subtests
) -> None:
    for span in (40, 64, 90, 130):
        with subtests.test(span=span):
            hooks = hooks_of(_spanning(span))
            assert texts_for(hooks.model).length >= min(span + 24, 160)
            assert "packed logits differ" in str(Forwards(hooks).reason)


def test_a_switch_beyond_every_text_must_be_a_window(
    hooks_of: Callable[[Any], ModelHooks], monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """On a large model long texts take too long: masks verify windows, and nothing verifies other numbers."""
    monkeypatch.setattr(verification, "_MOST_OPERATIONS", {"cpu": 0.0, "cuda": 0.0})
    for config in (SWITCHING["phimoe"].config(), SWITCHING["gemma2"].config()):
        with subtests.test(kind=config.model_type):
            hooks = hooks_of(config)
            assert texts_for(hooks.model).length == 48
            assert Forwards(hooks).reason is None
    with subtests.test(kind="no window"):
        reason = Forwards(hooks_of(_spanning(90))).reason
        assert reason is not None and reason.startswith("its attn_span of 90 tokens is no window")


class _Told(LlamaAttention):
    """Attention that is told one window, with masks of another."""

    told: ClassVar[int] = 12

    def forward(self, *args: Any, **given: Any) -> Any:
        return super().forward(*args, sliding_window=self.told, **given)


def test_a_window_that_the_mask_does_not_have_is_refused(hooks_of: Callable[[Any], ModelHooks]) -> None:
    hooks = hooks_of(LlamaConfig(**COMMON))
    for module in hooks.model.hf.modules():
        if isinstance(module, LlamaAttention):
            module.__class__ = _Told
    with pytest.raises(UnknownAttention, match="told a window of 12 tokens, and its mask has none"):
        verify(PackedForward(hooks, Budget(1 << 24), tokens=400))


def test_an_arena_that_is_too_small_verifies_nothing(hooks_of: Callable[[Any], ModelHooks]) -> None:
    hooks = hooks_of(LlamaConfig(**COMMON))
    with pytest.raises(UnknownAttention, match="an arena of 60 tokens is too small"):
        verify(PackedForward(hooks, Budget(1 << 24), tokens=60))


@pytest.mark.parametrize(("name", "window"), [("gemma2", 48), ("gpt_oss", 48), ("llama", None)])
def test_the_one_call_of_a_gpu_is_verified_on_whole_models(
    name: str,
    window: int | None,
    hooks_of: Callable[[Any], ModelHooks],
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex, "_compiled", lambda: flex_module.flex_attention)
    monkeypatch.setattr(flex, "takes", lambda *_: True)
    monkeypatch.setattr(Forwards, "on_gpu", True)
    hooks = hooks_of(LlamaConfig(**COMMON) if name == "llama" else SWITCHING[name].config())
    with subtests.test("it is taken, and ranges begin at blocks"):
        forwards = Forwards(hooks)
        assert (forwards.reason, forwards.attends_together) == (None, True)
        forward = PackedForward(hooks, Budget(1 << 40), tokens=2000, block=flex.BLOCK)
        verify(forward)
        assert forward.ways == {flex.NAME}
        assert window is None or window in forward.windows
        assert forward.arena.size_of(129) == 2 * flex.BLOCK
    with subtests.test("a wrong one is found, and each request has its own call"):
        right = flex.attend
        monkeypatch.setattr(flex, "attend", lambda query, *of: right(query.flip(0), *of))
        forwards = Forwards(hooks)
        assert (forwards.reason, forwards.attends_together) == (None, False)
    with subtests.test("so it is if it cannot be compiled"):
        monkeypatch.setattr(flex, "attend", lambda *_: (_ for _ in ()).throw(RuntimeError("no compiler")))
        forwards = Forwards(hooks)
        assert (forwards.reason, forwards.attends_together) == (None, False)
