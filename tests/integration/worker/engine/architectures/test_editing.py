"""An intervention at every dense point of every architecture, against hooks that replace values."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch

from actograph.contract.interventions import READ_ONLY_POINTS
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import KeepingSink, generate, requests_for
from tests.support.plain_forward import main_tensor
from worker.engine.engine import Engine
from worker.engine.requests import Edit

pytestmark = pytest.mark.integration

PROMPTS = ["Once upon a time there was a little girl.", "The cat"]
POINTS = (
    "embed", "resid_pre.1", "attn_in.1", "attn_out.1", "resid_mid.1", "mlp_in.1", "mlp_out.1", "resid_post.1",
    "final_norm",
)  # fmt: skip


def with_first(value: Any, new: torch.Tensor) -> Any:
    return (new, *value[1:]) if isinstance(value, tuple) else new


def plain_rows(engine: Engine, ids: tuple[int, ...], hook: str | None, v: torch.Tensor) -> dict[str, Any]:
    """Rows of every point of one prompt in a plain forward, with `v` added at `hook` by returned values."""
    hf: Any = engine.model.hf
    hooks = {
        h: i.location for h, i in engine.structure.hooks.items() if h.split(".")[0] not in READ_ONLY_POINTS
    }
    found: dict[str, torch.Tensor] = {}
    with ExitStack() as stack, torch.inference_mode():

        def on_output(path: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
            def after(_: Any, args: Any, output: Any) -> Any:
                return with_first(output, change(main_tensor(output)))

            stack.callback(hf.get_submodule(path).register_forward_hook(after).remove)

        if hook is not None and hook.startswith("resid_mid"):
            entered: list[torch.Tensor] = []
            layer = hooks["resid_pre.1"].rpartition(".")[0]

            def entering(_: Any, args: Any, kwargs: Any) -> None:
                entered.append(main_tensor(args or list(kwargs.values())))

            stack.callback(
                hf.get_submodule(layer).register_forward_pre_hook(entering, with_kwargs=True).remove
            )
            # the stream between attention and MLP is what came in plus this module's output
            on_output(_attention_delta(engine, ids), lambda out: entered[-1] + out + v - entered[-1])
        elif hook is not None:
            path, _, side = hooks[hook].rpartition(".")
            if side == "output":
                on_output(path, lambda out: out + v.reshape(out.shape[2:]) if out.ndim > 3 else out + v)
            else:

                def before(_: Any, args: Any, kwargs: Any) -> Any:
                    if args:
                        return (args[0] + v, *args[1:]), kwargs
                    name = next(iter(kwargs))
                    return args, {**kwargs, name: kwargs[name] + v}

                handle = hf.get_submodule(path).register_forward_pre_hook(before, with_kwargs=True)
                stack.callback(handle.remove)
        for name, location in hooks.items():
            path, _, side = location.rpartition(".")

            def keep(_: Any, args: Any, kwargs: Any, output: Any, name: str = name, side: str = side) -> None:
                value = main_tensor(output if side == "output" else (args or list(kwargs.values())))
                found[name] = value.reshape(len(ids), -1).clone()

            stack.callback(hf.get_submodule(path).register_forward_hook(keep, with_kwargs=True).remove)
        hf(input_ids=torch.tensor([ids]), use_cache=False)
    return found


def _attention_delta(engine: Engine, ids: tuple[int, ...]) -> str:
    """The module of layer 1 whose output attention adds to the stream: itself, or a norm after it."""
    hf: Any = engine.model.hf
    hooks = engine.structure.hooks
    rows = plain_rows(engine, ids, None, torch.zeros(1))
    want = rows["resid_mid.1"] - rows["resid_pre.1"]
    layer = hooks["resid_pre.1"].location.rpartition(".")[0]
    outputs: dict[str, torch.Tensor] = {}
    with ExitStack() as stack, torch.inference_mode():
        for name, module in hf.get_submodule(layer).named_children():
            stack.callback(
                module.register_forward_hook(
                    lambda _, a, out, name=name: outputs.__setitem__(name, main_tensor(out).clone())
                ).remove
            )
        hf(input_ids=torch.tensor([ids]), use_cache=False)
    for name, out in outputs.items():
        if out.ndim == 3 and out[0].shape == want.shape and torch.allclose(out[0], want, atol=1e-4):
            return f"{layer}.{name}"
    raise AssertionError("no module gives what attention adds")


@pytest.mark.covering(16)
@pytest.mark.parametrize("hook", POINTS)
def test_adding_a_vector_reaches_everything_after_it(architecture: str, hook: str, engine_of: Any) -> None:
    engine = engine_of(architecture)
    hooks = list(engine.structure.hooks)
    if hook not in hooks:
        assert hook.rpartition(".")[0] in engine.structure.unavailable
        return
    v = torch.randn(engine.width_of(hook), generator=torch.Generator().manual_seed(1)) * 2
    edit = Edit(hook=hook, op="add", vector=v)
    requests = [replace(r, edits=(edit,)) for r in requests_for(engine, PROMPTS)]
    sink = KeepingSink()
    made = generate(engine, requests, sampling=SamplingSpec(max_tokens=4), hooks=hooks, sink=sink)
    changed_something = False
    for i, generation in enumerate(made):
        assert generation.error is None
        ids = generation.prompt_ids + generation.generated_ids[:-1]
        want, plain = plain_rows(engine, ids, hook, v), plain_rows(engine, ids, None, v)
        if "logits" in want:
            likeliest = want["logits"][len(generation.prompt_ids) - 1 :].argmax(-1)
            assert likeliest.tolist() == list(generation.generated_ids)
        for name in want:
            if name == hook:
                expected = plain[name] + v  # by the definition
            elif engine.hooks.edited_at(name) == engine.hooks.edited_at(hook):
                expected = want[hook]
            elif hook == "resid_mid.1" and engine.structure.hooks[name].location.startswith(
                _attention_delta(engine, ids)
            ):
                continue  # the plain hook had to change it to reach the stream
            else:
                expected = want[name]
            got = sink.rows(i, name)
            expected = expected[-len(got) :]
            scale = float(expected.abs().max())
            assert torch.allclose(got, expected, rtol=1e-3, atol=1e-3 * scale), name
            changed_something |= not torch.allclose(expected, plain[name][-len(got) :], atol=1e-3 * scale)
    assert changed_something
