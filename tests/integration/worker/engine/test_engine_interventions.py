"""Interventions against plain torch hooks on plain transformers."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, LogitsProcessorList

from actograph.contract.errors import InterventionFailed, InvalidRequest, UnknownHook
from actograph.contract.row_selection import TokenRange
from actograph.contract.specs import SamplingSpec
from tests.support.token_choosers import TheseTokens
from worker.engine.engine import Engine
from worker.engine.requests import Edit, Generation, GenerationRequest
from worker.engine.tokens.sampling import GumbelSampler
from worker.engine.traced import tracing
from worker.engine.traced.point_reader import PointReader

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
PROMPTS = [
    "Once upon a time there was a little girl who had 12 apples and gave 5 of them away.",
    "The cat",
    "Tom has 34 books and Mia has 57 books. How many do they have in total?",
]
GREEDY = SamplingSpec(max_tokens=12)
SAMPLED = SamplingSpec(max_tokens=12, temperature=0.9, top_p=0.95)
MODELS = ["tiny-qwen3", "llama", "gpt2"]


@pytest.fixture(scope="module")
def engine_for(engine_of: EngineOf, random_engine_of: Any, shared: Any) -> EngineOf:
    made: dict[str, Engine] = {}

    def make(name: str) -> Engine:
        if name != "gpt2":
            return engine_of(name)
        if name not in made:
            config = GPT2Config(
                n_embd=32,
                n_layer=3,
                n_head=4,
                vocab_size=512,
                n_positions=160,
                bos_token_id=1,
                eos_token_id=1,
            )
            tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
            made[name] = random_engine_of(config, tokenizer, name)
        return made[name]

    return make


def vector(engine: Engine, hook: str, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(engine.width_of(hook), generator=generator) * scale


def apply(edit: Edit, rows: torch.Tensor) -> torch.Tensor:
    """The definition, written a second time: rows [n, width] -> rows."""
    x = rows.float()
    if edit.op == "zero":
        return torch.zeros_like(rows)
    if edit.op == "scale":
        return (edit.coefficient * x).to(rows.dtype)
    v = edit.vector
    assert v is not None
    if edit.op == "add":
        return (x + edit.coefficient * v).to(rows.dtype)
    if edit.op == "replace":
        return (edit.coefficient * v).repeat(len(x), 1).to(rows.dtype)
    return (x - edit.coefficient * torch.outer(x @ v / (v @ v), v)).to(rows.dtype)


def chosen(edit: Edit, prompt: int, token: int) -> bool:
    if isinstance(edit.chooser, TheseTokens):
        return token in edit.chooser.tokens
    positions = edit.positions
    match positions:
        case "all":
            return True
        case "prompt":
            return token < prompt
        case "generated":
            return token >= prompt
        case "last_prompt":
            return token == prompt - 1
        case TokenRange():
            return positions.start <= token and (positions.stop is None or token < positions.stop)


class Plain:
    """One sample, steered by forward hooks that replace values. No padding, no nnsight."""

    def __init__(self, engine: Engine, edits: Sequence[Edit], prompt: int) -> None:
        self.engine, self.edits, self.prompt = engine, edits, prompt
        self.seen = 0  # tokens that earlier forwards took in
        self.entered: dict[int, torch.Tensor] = {}  # layer -> its input in this forward

    def changed(self, edit: Edit, value: torch.Tensor) -> torch.Tensor:
        tokens = value.shape[1]
        first = self.now + self.tokens - tokens  # the head may be given the last token alone
        mask = torch.tensor([chosen(edit, self.prompt, first + i) for i in range(tokens)])
        new = value.clone()
        if mask.any():
            new[0, mask] = apply(edit, value[0, mask].reshape(int(mask.sum()), -1)).reshape(
                value[0, mask].shape
            )
        return new

    def place(self, edit: Edit, stack: ExitStack) -> None:
        hf = self.engine.model.hf
        point, _, layer = edit.hook.rpartition(".")
        hooks = self.engine.structure.hooks
        if point == "resid_mid":
            entry = hooks[f"resid_pre.{layer}"].location.rpartition(".")[0]
            attention = hooks[f"attn_out.{layer}"].location.rpartition(".")[0]

            def entering(_: Any, args: Any, kwargs: Any) -> None:
                self.entered[int(layer)] = args[0] if args else kwargs["hidden_states"]

            def leaving(_: Any, args: Any, output: Any) -> Any:
                pre = self.entered[int(layer)]
                value = output[0] if isinstance(output, tuple) else output
                value = self.changed(edit, pre + value) - pre
                return (value, *output[1:]) if isinstance(output, tuple) else value

            stack.callback(
                hf.get_submodule(entry).register_forward_pre_hook(entering, with_kwargs=True).remove
            )
            stack.callback(hf.get_submodule(attention).register_forward_hook(leaving).remove)
            return
        location = hooks[edit.hook].location if edit.hook in hooks else edit.hook
        path, _, side = location.rpartition(".")
        module = hf.get_submodule(path)
        if side == "input":

            def before(_: Any, args: Any, kwargs: Any) -> Any:
                if args:
                    return (self.changed(edit, args[0]), *args[1:]), kwargs
                return args, {**kwargs, "hidden_states": self.changed(edit, kwargs["hidden_states"])}

            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            return

        def after(_: Any, args: Any, output: Any) -> Any:
            if isinstance(output, tuple):
                return (self.changed(edit, output[0]), *output[1:])
            return self.changed(edit, output)

        stack.callback(module.register_forward_hook(after).remove)

    @contextmanager
    def steered(self) -> Any:
        hf: Any = self.engine.model.hf

        def count(_: Any, args: Any, kwargs: Any) -> None:
            ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
            self.now, self.tokens = self.seen, ids.shape[1]
            self.seen += ids.shape[1]

        with ExitStack() as stack, torch.inference_mode():
            stack.callback(hf.register_forward_pre_hook(count, with_kwargs=True).remove)
            for edit in self.edits:
                self.place(edit, stack)
            yield hf

    def generate(self, request: GenerationRequest, sampling: SamplingSpec) -> tuple[int, ...]:
        ids = torch.tensor([request.prompt_ids])
        options: dict[str, Any] = {}
        if sampling.temperature:
            sampler = GumbelSampler(sampling, [request.seed], ids.shape[1], torch.device("cpu"))
            options["logits_processor"] = LogitsProcessorList([sampler])
        with self.steered() as hf:
            out = hf.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                max_new_tokens=sampling.max_tokens, pad_token_id=self.engine.model.pad_token_id, **options,
            )  # fmt: skip
        return tuple(out[0, ids.shape[1] :].tolist())

    def rows(self, generation: Generation, hooks: Sequence[str]) -> dict[str, torch.Tensor]:
        """Rows by one forward over all tokens; read after the edits of the same module."""
        found: dict[str, torch.Tensor] = {}
        ids = torch.tensor([generation.prompt_ids + generation.generated_ids[:-1]])
        with self.steered() as hf, ExitStack() as stack:
            for hook in hooks:
                path, _, side = self.engine.structure.hooks[hook].location.rpartition(".")

                def keep(
                    _: Any, args: Any, kwargs: Any, output: Any, hook: str = hook, side: str = side
                ) -> None:
                    value = output if side == "output" else (args or list(kwargs.values()))[0]
                    value = value[0] if isinstance(value, tuple) else value
                    found[hook] = value[0].clone().flatten(1)

                stack.callback(hf.get_submodule(path).register_forward_hook(keep, with_kwargs=True).remove)
            hf(input_ids=ids, use_cache=False)
        return found


def check(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    sampling: SamplingSpec,
    keeping_sink: Any,
    *,
    skip: Sequence[str] = (),
) -> list[Generation]:
    """Ids and every row of every point equal the plain hooks', with capture and without."""
    hooks = [h for h in engine.structure.hooks if h not in skip]
    sink = keeping_sink()
    made = engine.generate(requests, sampling=sampling, hooks=hooks, sink=sink)
    assert engine.generate(requests, sampling=sampling) == made
    for i, (request, generation) in enumerate(zip(requests, made, strict=True)):
        assert generation.error is None
        prompt = len(request.prompt_ids)
        assert generation.generated_ids == Plain(engine, request.edits, prompt).generate(request, sampling)
        want = Plain(engine, request.edits, prompt).rows(generation, hooks)
        for hook in hooks:
            got = sink.rows(i, hook)
            expected = want[hook][prompt - 1 :] if hook == "logits" else want[hook]
            assert got.shape == expected.shape
            assert torch.allclose(got, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())), hook
    return made


@pytest.mark.covering(10)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "point", ["resid_pre", "attn_in", "attn_out", "resid_mid", "mlp_in", "mlp_out", "resid_post"]
)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_point_equals_plain_hooks(
    name: str,
    point: str,
    *,
    sampling: SamplingSpec,
    engine_for: EngineOf,
    requests_for: Any,
    keeping_sink: Any,
) -> None:
    engine = engine_for(name)
    hook = f"{point}.1"
    edit = Edit(hook=hook, op="add", vector=vector(engine, hook), coefficient=-2.0)
    requests = [replace(r, edits=(edit,)) for r in requests_for(engine, PROMPTS, seed=3)]
    # the plain hook replaces a layer's input, so the same tensor as the layer before gave it is unchanged
    skip = ["resid_post.0"] if point == "resid_pre" else ["attn_out.1"] if point == "resid_mid" else []
    steered = check(engine, requests, sampling, keeping_sink, skip=skip)
    logits = []
    for own in (requests[:1], [replace(requests[0], edits=())]):
        sink = keeping_sink()
        engine.generate(own, sampling=sampling, hooks=["logits"], sink=sink)
        logits.append(sink.rows(0, "logits")[0])
    assert not torch.allclose(logits[0], logits[1], atol=1e-2)
    for request, generation in zip(requests, steered, strict=True):  # a batch of one
        assert engine.generate([request], sampling=sampling) == [generation]


@pytest.mark.covering(12)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("op", ["add", "scale", "zero", "replace", "project_out"])
@pytest.mark.parametrize(
    "positions",
    [
        "all",
        "prompt",
        "generated",
        "last_prompt",
        TheseTokens((0, 2, 5, 21, 40)),
        TokenRange(start=1, stop=30),
    ],
    ids=str,
)
def test_every_operation_at_every_kind_of_position(
    name: str, op: Any, positions: Any, *, engine_for: EngineOf, requests_for: Any, keeping_sink: Any
) -> None:
    engine = engine_for(name)
    hook = "resid_post.0"
    edit = Edit(
        hook=hook,
        op=op,
        vector=vector(engine, hook) if op in ("add", "replace", "project_out") else None,
        coefficient={"scale": -1.5, "zero": 1.0}.get(op, 0.75),
        **({"chooser": positions} if isinstance(positions, TheseTokens) else {"positions": positions}),
    )
    requests = [replace(r, edits=(edit,)) for r in requests_for(engine, PROMPTS)]
    check(engine, requests, GREEDY, keeping_sink)


@pytest.mark.parametrize("name", MODELS)
def test_embedding_logits_and_module_paths(
    name: str, engine_for: EngineOf, requests_for: Any, keeping_sink: Any
) -> None:
    engine = engine_for(name)
    inner = next(
        h for h in engine.structure.module_locations if h.endswith(("up_proj.output", "mlp.act.output"))
    )
    for hook in ("embed", "final_norm", "logits", inner):
        edit = Edit(hook=hook, op="add", vector=vector(engine, hook, scale=1.0), positions="all")
        requests = [replace(r, edits=(edit,)) for r in requests_for(engine, PROMPTS)]
        check(engine, requests, GREEDY, keeping_sink)


@pytest.mark.parametrize("name", MODELS)
def test_several_at_once_in_the_order_given(
    name: str, engine_for: EngineOf, requests_for: Any, keeping_sink: Any
) -> None:
    engine = engine_for(name)
    added = Edit(hook="resid_post.0", op="add", vector=vector(engine, "resid_post.0", 1))
    turned = Edit(hook="resid_post.0", op="scale", coefficient=-1.0, positions=TokenRange(start=2))
    removed = Edit(hook="mlp_out.1", op="project_out", vector=vector(engine, "mlp_out.1", 2))
    made = []
    for edits in [(added, turned, removed), (turned, added, removed)]:
        requests = [replace(r, edits=edits) for r in requests_for(engine, PROMPTS)]
        made.append(check(engine, requests, GREEDY, keeping_sink))
    assert made[0] != made[1]


def test_samples_of_one_batch_may_differ(engine_for: EngineOf, requests_for: Any, keeping_sink: Any) -> None:
    """A steered sample's unsteered twin in the same batch has the bits of a run of its own."""
    engine = engine_for("tiny-qwen3")
    first = Edit(hook="resid_post.0", op="add", vector=vector(engine, "resid_post.0"), positions="generated")
    second = Edit(hook="resid_post.0", op="zero", chooser=TheseTokens((1, 33)))
    plain = requests_for(engine, PROMPTS)
    mixed = [
        plain[0],
        replace(plain[0], edits=(first,)),
        replace(plain[1], edits=(second, first)),
        replace(plain[2], edits=(first, second)),
        plain[2],
    ]
    made = check(engine, mixed, GREEDY, keeping_sink)
    sink, alone = keeping_sink(), keeping_sink()
    twins = [plain[0], plain[0], plain[1], plain[2], plain[2]]
    hooks = ["resid_post.0", "mlp_out.1"]
    engine.generate(mixed, sampling=GREEDY, hooks=hooks, sink=sink)
    unsteered = engine.generate(twins, sampling=GREEDY, hooks=hooks, sink=alone)
    for i in (0, 4):
        assert made[i] == unsteered[i]
        for hook in hooks:
            assert torch.equal(sink.rows(i, hook), alone.rows(i, hook))


@pytest.mark.parametrize("positions", ["generated", "last_prompt"])
def test_what_comes_before_keeps_its_bits(
    positions: Any, engine_for: EngineOf, requests_for: Any, keeping_sink: Any
) -> None:
    """Rows of earlier tokens and of earlier points of the same step do not show the edit."""
    engine = engine_for("tiny-qwen3")
    hooks = list(engine.structure.hooks)
    order = {h: i for i, h in enumerate(hooks)}
    edit = Edit(hook="mlp_in.1", op="replace", vector=vector(engine, "mlp_in.1"), positions=positions)
    requests = requests_for(engine, PROMPTS)
    plain_sink, sink = keeping_sink(), keeping_sink()
    engine.generate(requests, sampling=GREEDY, hooks=hooks, sink=plain_sink)
    engine.generate([replace(r, edits=(edit,)) for r in requests], sampling=GREEDY, hooks=hooks, sink=sink)
    for i, request in enumerate(requests):
        first = len(request.prompt_ids) - (positions == "last_prompt")
        for hook in hooks:
            start = first - sink.first_row(i, hook)
            assert torch.equal(sink.rows(i, hook)[: max(start, 0)], plain_sink.rows(i, hook)[: max(start, 0)])
        before = [h for h in hooks if order[h] < order["mlp_in.1"]]
        assert "resid_mid.1" in before
        if positions == "last_prompt":
            for hook in before:
                row = first - sink.first_row(i, hook)
                assert torch.equal(sink.rows(i, hook)[row], plain_sink.rows(i, hook)[row])
            assert sink.rows(i, "mlp_in.1")[first].tolist() == vector(engine, "mlp_in.1").tolist()
            assert not torch.equal(sink.rows(i, "mlp_out.1")[first], plain_sink.rows(i, "mlp_out.1")[first])


def test_the_same_tensor_by_two_names(engine_for: EngineOf, requests_for: Any, keeping_sink: Any) -> None:
    engine = engine_for("tiny-qwen3")
    rows = []
    for hook in ("resid_pre.1", "resid_post.0"):
        edit = Edit(hook=hook, op="add", vector=vector(engine, hook))
        sink = keeping_sink()
        requests = [replace(r, edits=(edit,)) for r in requests_for(engine, PROMPTS)]
        engine.generate(requests, sampling=GREEDY, hooks=["resid_post.0", "resid_pre.1", "logits"], sink=sink)
        assert torch.equal(sink.rows(0, "resid_post.0"), sink.rows(0, "resid_pre.1"))
        rows.append(sink.rows(0, "logits"))
    assert torch.equal(*rows)


@pytest.mark.parametrize("name", MODELS)
def test_what_changes_nothing_leaves_every_bit(
    name: str, engine_for: EngineOf, requests_for: Any, keeping_sink: Any
) -> None:
    engine = engine_for(name)
    v = vector(engine, "resid_post.1")
    nothing = (
        Edit(hook="resid_post.1", op="add", vector=v, coefficient=0.0),
        Edit(hook="resid_post.1", op="project_out", vector=v, coefficient=0.0),
        Edit(hook="resid_post.1", op="scale", coefficient=1.0),
        Edit(hook="resid_post.1", op="add", vector=v, chooser=TheseTokens((5000,))),
    )
    requests = requests_for(engine, PROMPTS)
    hooks = list(engine.structure.hooks)
    plain_sink, sink = keeping_sink(), keeping_sink()
    want = engine.generate(requests, sampling=SAMPLED, hooks=hooks, sink=plain_sink)
    got = engine.generate(
        [replace(r, edits=nothing) for r in requests], sampling=SAMPLED, hooks=hooks, sink=sink
    )
    assert got == want
    for i in range(len(requests)):
        for hook in hooks:
            a, b = sink.rows(i, hook), plain_sink.rows(i, hook)
            assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def test_half_precision_is_rounded_once_per_edit(
    engine_of: EngineOf, random_engine_of: Any, requests_for: Any, keeping_sink: Any
) -> None:
    engine = random_engine_of(engine_of("llama").model.hf.config, engine_of("llama").model.tokenizer, "bf16")
    engine.model.hf.to(torch.bfloat16)
    hook = "mlp_out.0"
    v = vector(engine, hook)
    requests = requests_for(engine, PROMPTS[:1])
    before, after = keeping_sink(), keeping_sink()
    engine.generate(requests, sampling=GREEDY, hooks=[hook], sink=before)
    edit = Edit(hook=hook, op="add", vector=v, coefficient=0.3, positions="prompt")
    engine.generate([replace(requests[0], edits=(edit,))], sampling=GREEDY, hooks=[hook], sink=after)
    prompt = len(requests[0].prompt_ids)
    x = before.rows(0, hook)[:prompt]
    assert x.dtype == torch.bfloat16
    assert torch.equal(after.rows(0, hook)[:prompt], (x.float() + 0.3 * v).to(torch.bfloat16))


def test_without_edits_nothing_is_traced(
    engine_for: EngineOf, requests_for: Any, monkeypatch: pytest.MonkeyPatch, keeping_sink: Any
) -> None:
    engine = engine_for("tiny-qwen3")
    seen: list[Sequence[Any]] = []
    trace = tracing.generate

    def note(model: Any, inputs: Any, observers: Sequence[Any], modules: Sequence[str]) -> None:
        seen.append(observers)
        trace(model, inputs, observers, modules)

    monkeypatch.setattr(tracing, "generate", note)
    requests = requests_for(engine, PROMPTS[:1])
    engine.generate(requests, sampling=GREEDY)
    nothing = Edit(hook="resid_post.1", op="scale", coefficient=1.0)
    engine.generate([replace(requests[0], edits=(nothing,))], sampling=GREEDY)
    assert seen == []
    engine.generate(requests, sampling=GREEDY, hooks=["resid_post.1"], sink=keeping_sink())
    assert [[type(o) for o in observers] for observers in seen] == [[PointReader]]


@pytest.mark.parametrize("capture", [False, True])
def test_a_model_driven_beyond_its_range_fails_that_sample_alone(
    capture: bool, engine_for: EngineOf, requests_for: Any, keeping_sink: Any
) -> None:
    engine = engine_for("tiny-qwen3")
    requests = requests_for(engine, PROMPTS)
    third = len(requests[1].prompt_ids) + 2  # the row that chooses generated token 3
    huge = Edit(
        hook="resid_post.0",
        op="add",
        vector=torch.full((96,), 3e38),
        coefficient=10.0,
        chooser=TheseTokens((third,)),
    )
    mixed = [requests[0], replace(requests[1], edits=(huge,)), requests[2]]
    hooks = {"hooks": ["resid_mid.0"], "sink": keeping_sink()} if capture else {}
    made = engine.generate(mixed, sampling=GREEDY, **hooks)
    plain = engine.generate(requests, sampling=GREEDY)
    assert [made[0], made[2]] == [plain[0], plain[2]]
    assert isinstance(made[1].error, InterventionFailed)
    assert "generated token 3" in str(made[1].error)
    # what comes after the sample's end is no failure
    assert engine.generate(mixed, sampling=SamplingSpec(max_tokens=3))[1].error is None


def test_bad_edits_are_refused_before_anything_runs(engine_for: EngineOf, requests_for: Any) -> None:
    engine = engine_for("tiny-qwen3")
    request = requests_for(engine, PROMPTS[:1])[0]
    with pytest.raises(InvalidRequest, match=r"3 numbers, resid_post\.1 is 96 wide"):
        engine.generate(
            [replace(request, edits=(Edit(hook="resid_post.1", op="add", vector=torch.ones(3)),))],
            sampling=GREEDY,
        )
    with pytest.raises(UnknownHook):
        engine.generate([replace(request, edits=(Edit(hook="nowhere", op="zero"),))], sampling=GREEDY)
