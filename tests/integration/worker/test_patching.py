"""Patch jobs: pairs of sessions, cell by cell, against a patching loop of plain PyTorch hooks."""

import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoTokenizer

from actograph.contract.interventions import NewVector
from actograph.contract.job_specs import PatchSpec
from actograph.contract.patching import PAIR_FILE, PatchedPair
from actograph.contract.resources import JobStatus, Sample, SampleStatus
from storage.analyses import pairs
from storage.jobs import jobs
from storage.sessions import changes as session_changes
from storage.sessions import vectors
from storage.sessions.reader import SessionReader
from storage.sessions.writer import session_prefix
from tests.integration.worker.test_replays import identified
from tests.support import leasing
from tests.support.architectures import ARCHITECTURES
from tests.support.engine_double import Watched
from tests.support.engine_run import random_engine
from tests.support.submitting import insert, insert_chat
from worker.engine.messages import Request
from worker.sample import patch_cells
from worker.sample.pair_run import CELL

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
CLEAN, CORRUPTED = "Tom has 34 books", "Tom has 57 books"
SIDES = ((CLEAN, "clean"), (CORRUPTED, "corrupted"))
POINTS = ["resid_pre", "attn_out", "mlp_out"]
CAPTURE = {"points": [*POINTS, "z"], "layers": "all", "mode": "prefill"}
Array = NDArray[Any]


def paired(groups: str) -> list[tuple[str, str, str]]:
    """The two texts, in each of the groups."""
    return [(text, side, group) for group in groups for text, side in SIDES]


class Patches:
    """Jobs on a bench, and the pairs of their sessions."""

    def __init__(self, bench: "Bench") -> None:
        self.bench = bench

    def run(self, *texts: tuple[str, str, str], capture: dict[str, Any] = CAPTURE, **job: Any) -> str:
        """A finished capture job of texts, each with its side and group."""
        inputs = [{"prompt": text, "tags": [side], "group": group} for text, side, group in texts]
        job_id = self.bench.submit(inputs=inputs, capture=capture, **job)
        self.bench.drain().look()
        assert self.bench.status(job_id) is JobStatus.COMPLETED, self.bench.samples(job_id)
        return job_id

    def submit(self, source: str, **changes: Any) -> str:
        """As the API expands it."""
        body = {
            "kind": "patch", "model": MODEL, "pair_by": "group", "points": POINTS, "answer": 300,
            "clean": {"jobs": [source], "tag": "clean"}, "corrupted": {"jobs": [source], "tag": "corrupted"},
        }  # fmt: skip
        spec = PatchSpec.model_validate(body | changes)
        with self.bench.database.read() as session:
            found = pairs.found(session, spec)
        return insert(self.bench.database, spec, pairs.samples_of(found))

    def patched(self, source: str, **changes: Any) -> list[Sample]:
        job_id = self.submit(source, **changes)
        self.bench.drain().look()
        return self.bench.samples(job_id)

    def read(self, sample: Sample) -> tuple[PatchedPair, Array]:
        """The stored arrays of a pair, and its metric."""
        assert sample.session_id is not None, sample.error
        SessionReader(self.bench.store, sample.session_id).verify()

        def file(name: str) -> bytes:
            folder = self.bench.settings.home / "artifacts"
            return (folder / session_prefix(str(sample.session_id)) / name).read_bytes()

        with np.load(io.BytesIO(file("patch.npz")), allow_pickle=False) as arrays:
            return PatchedPair.model_validate_json(file(PAIR_FILE)), arrays["metric"]

    def ids(self, pair: PatchedPair, side: str) -> list[int]:
        reader = SessionReader(self.bench.store, getattr(pair, f"{side}_session"))
        return reader.token_ids()[: reader.manifest.prompt_tokens]


@pytest.fixture
def place(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> Patches:
    identified(bench, monkeypatch)
    return Patches(bench)


def module_at(hf: Any, point: str, layer: int) -> tuple[Any, str]:
    """A module, and whether the point is its input or output: written down for these two families."""
    if hasattr(hf, "transformer"):
        block = hf.transformer.h[layer]
        attention, projection = block.attn, block.attn.c_proj
    else:
        block = hf.model.layers[layer]
        attention, projection = block.self_attn, block.self_attn.o_proj
    found = {
        "resid_pre": (block, "input"), "attn_out": (attention, "output"), "mlp_out": (block.mlp, "output"),
        "z": (projection, "input"),
    }  # fmt: skip
    return found[point]


@contextmanager
def hooked(hf: Any, point: str, layer: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace the tensor [1, tokens, width] of a point."""
    module, side = module_at(hf, point, layer)
    if side == "input":

        def before(_: Any, args: Any, kwargs: Any) -> Any:
            if args:
                return (change(args[0]), *args[1:]), kwargs
            return args, kwargs | {"hidden_states": change(kwargs["hidden_states"])}

        handle = module.register_forward_pre_hook(before, with_kwargs=True)
    else:

        def after(_: Any, __: Any, out: Any) -> Any:
            return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)

        handle = module.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


def kept(hf: Any, ids: list[int], point: str, layer: int) -> Tensor:
    """The rows of a point, [tokens, width]."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor[0].clone())
        return tensor

    with hooked(hf, point, layer, keep), torch.inference_mode():
        hf(torch.tensor([ids]), use_cache=False)
    return found[0]


def measured(hf: Any, ids: list[int], answer: int, against: int | None) -> float:
    with torch.inference_mode():
        logits = hf(torch.tensor([ids]), use_cache=False).logits[0, -1].float()
    if against is None:
        return float(logits.log_softmax(-1)[answer])
    return float(logits[answer] - logits[against])


def plain_loop(
    hf: Any,
    source: list[int],
    into: list[int],
    pair: PatchedPair,
    *,
    width: int = 0,
    measure: Callable[[list[int]], float] | None = None,
) -> Array:
    """The metric of each cell at single tokens: one forward a cell."""
    heads = [None] if pair.heads is None else list(pair.heads)
    shape = (len(pair.points), len(pair.layers), len(pair.positions), len(heads))
    found = np.zeros(shape)
    for at in np.ndindex(*shape):
        point, layer, token = pair.points[at[0]], pair.layers[at[1]], int(pair.positions[at[2]])
        head = heads[at[3]]
        rows = kept(hf, source, point, layer)
        columns = slice(None) if head is None else slice(head * width, (head + 1) * width)

        def put(tensor: Tensor, token: int = token, columns: slice = columns, rows: Tensor = rows) -> Tensor:
            tensor = tensor.clone()
            tensor[0, token, columns] = rows[token, columns]
            return tensor

        with hooked(hf, point, layer, put):
            if measure is not None:
                found[at] = measure(into)
            else:
                assert pair.answer is not None
                found[at] = measured(hf, into, pair.answer, pair.against)
    return found[..., 0] if pair.heads is None else found


def arch(place: Patches, shared: "Path", name: str) -> Patches:
    """The same place with random weights in another shape."""
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
    engine = random_engine(ARCHITECTURES[name].config(), tokenizer, MODEL)
    return Patches(replace(place.bench, engine=engine))


def test_a_metric_may_be_a_readout(
    place: Patches, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The cells' values are those of a plain loop: at any layer and token, together and each alone."""
    hf, structure = place.bench.engine.model.hf, place.bench.engine.structure
    numbers = np.cos(np.arange(structure.hidden_size)).tolist()
    metadata = {"bias": "0.5"}
    with place.bench.database.write() as session:
        new = NewVector(name="v", hook="resid_post.1", vector=numbers, metadata=metadata)
        vector = vectors.insert(session, new).id
    source = place.run((CLEAN, "clean", "a"), (CORRUPTED, "corrupted", "a"))
    last = structure.num_layers - 1
    cases: list[tuple[str, int, float]] = [
        (f"attn_out.{last}", -1, 0.5),
        ("mlp_out.1", 4, 2.0),
        ("resid_pre.0", -2, 0.5),
        ("mlp_out.1", -1, 0.0),
    ]
    for hook, position, bias in cases:
        own = {} if bias == 0.5 else {"bias": bias}
        metric = {"readout": {"vector": vector, "hook": hook, "name": "v"} | own, "position": position}
        for alone in (False, True):
            with subtests.test(hook=hook, position=position, alone=alone):
                here = repeatable(place, alone)
                (sample,) = here.patched(source, metric=metric, answer=None)
                pair, found = here.read(sample)
                clean, corrupted = here.ids(pair, "clean"), here.ids(pair, "corrupted")
                point, layer = hook.split(".")

                def value(
                    ids: list[int], point: str = point, layer: str = layer, at: int = position
                ) -> float:
                    return float(
                        kept(hf, ids, point, int(layer))[at].double() @ torch.tensor(numbers).double()
                    )

                assert pair.clean == pytest.approx(value(clean) + bias, abs=1e-4)
                assert pair.corrupted == pytest.approx(value(corrupted) + bias, abs=1e-4)
                assert pair.answer is None and pair.is_defined
                due = plain_loop(hf, clean, corrupted, pair, measure=value) + bias
                np.testing.assert_allclose(found, due, atol=1e-4)
    (early,) = place.patched(source, metric=metric | {"position": 400}, answer=None)
    assert early.error is not None and "no token 400" in early.error.message


def repeatable(place: Patches, yes: bool) -> Patches:
    """The same place with runs that repeat bit for bit, which read no variants of prompts."""
    settings = place.bench.settings.model_copy(update={"repeatable": yes})
    return Patches(replace(place.bench, settings=settings))


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "qwen3, repeatable"])
def test_cells_are_those_of_a_plain_loop(
    place: Patches, shared: "Path", name: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Together as variants of a request; each as a request of its own in runs that repeat."""
    name, _, how = name.partition(", ")
    here = repeatable(arch(place, shared, name), bool(how))
    identified(here.bench, monkeypatch)
    hf = here.bench.engine.model.hf
    source = here.run((CLEAN, "clean", "a"), (CORRUPTED, "corrupted", "a"))
    difference = {"metric": "logit_difference", "against": 17}
    cases: dict[str, dict[str, Any]] = {
        "denoise": {},
        "noise": {"direction": "noise"},
        "difference": difference,
        "heads": {"points": ["z"], "heads": "all", "positions": [2, 5]},
        "two heads, noise": {"points": ["z"], "heads": [3, 0], "positions": [4], "direction": "noise"},
        "some layers": {"layers": [2, 0], "points": ["mlp_out"]} | difference,
    }
    jobs = {title: here.submit(source, **case) for title, case in cases.items()}
    here.bench.drain().look()
    for title, case in cases.items():
        with subtests.test(case=title):
            (sample,) = here.bench.samples(jobs[title])
            pair, metric = here.read(sample)
            clean, corrupted = here.ids(pair, "clean"), here.ids(pair, "corrupted")
            assert clean != corrupted and len(clean) == len(corrupted)
            ends = (corrupted, clean) if case.get("direction") == "noise" else (clean, corrupted)
            assert metric.shape[:3] == (len(pair.points), len(pair.layers), len(pair.positions))
            np.testing.assert_allclose(metric, plain_loop(hf, *ends, pair, width=8), atol=1e-4)
            for side, ids in (("clean", clean), ("corrupted", corrupted)):
                assert getattr(pair, side) == pytest.approx(
                    measured(hf, ids, pair.answer, pair.against), abs=1e-4
                )
            assert pair.is_defined
            assert sample.prompt_tokens == (metric.size + 2) * len(clean)
            assert pair.layers == sorted(pair.layers)


@pytest.mark.parametrize("most", [512, 60])
def test_cells_begin_where_their_edits_do(place: Patches, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell at token 70 is read from there on; one with too many tokens for a variant from token 64 on."""
    monkeypatch.setattr(patch_cells, "STEP_TOKENS", most)
    text = "Tom has 34 books and Mia has 57 books. " * 9
    source = place.run(
        (text, "clean", "a"), (text.replace("34", "57", 1), "corrupted", "a"),
        capture=CAPTURE | {"points": ["resid_pre"]},
    )  # fmt: skip
    (sample,) = place.patched(source, points=["resid_pre"], positions=[1, 70, 71, 100, -1])
    pair, metric = place.read(sample)
    clean, corrupted = place.ids(pair, "clean"), place.ids(pair, "corrupted")
    assert len(clean) == len(corrupted) > 101
    places = [1, 70, 71, 100, len(clean) - 1]
    named = pair.model_copy(update={"positions": list(map(str, places))})
    np.testing.assert_allclose(
        metric, plain_loop(place.bench.engine.model.hf, clean, corrupted, named), atol=1e-4
    )
    np.testing.assert_array_equal(metric[:, :, 0], pair.corrupted)  # before the first token that differs
    with place.bench.database.read() as session:
        shared = jobs.get(session, sample.job_id).cached_tokens
    layers = metric.shape[1]
    if most == 512:
        late = layers * sum(places[1:]) - len(clean)
    else:  # two are variants; of the two requests, one was asked for before the prefix was known
        late = layers * sum(places[3:]) - len(clean) + 64 * (2 * layers - 1)
    assert late <= shared - layers * len(clean) <= late + 64 * 3


def test_tokens_that_are_patched_together_restore_the_clean_prompt(place: Patches) -> None:
    """The planted case: the prompts differ in one place alone, so the streams there are all that matters."""
    source = place.run((CLEAN, "clean", "a"), (CORRUPTED, "corrupted", "a"))
    (sample,) = place.patched(
        source, points=["resid_pre"], positions=["prompt", "prompt[3:5]", 0, "prompt[-2:]"]
    )
    pair, metric = place.read(sample)
    clean, corrupted = place.ids(pair, "clean"), place.ids(pair, "corrupted")
    differ = [at for at, (one, other) in enumerate(zip(clean, corrupted, strict=True)) if one != other]
    (other,) = place.patched(source, points=["resid_pre"], layers=[0], positions="all")
    _, by_token = place.read(other)
    whole = place.patched(
        source, points=["resid_pre"], layers=[0], positions=[f"prompt[{min(differ)}:{max(differ) + 1}]"]
    )
    _, restored = place.read(whole[0])
    np.testing.assert_allclose(metric[0, :, 0], pair.clean, atol=1e-4)  # all tokens, at any layer
    np.testing.assert_allclose(restored, pair.clean, atol=1e-4)
    same = [at for at in range(len(clean)) if at not in differ]
    np.testing.assert_allclose(by_token[0, 0, same], pair.corrupted, atol=1e-4)
    assert all(abs(by_token[0, 0, differ] - pair.corrupted) > 1e-3)
    assert pair.positions == ["prompt", "prompt[3:5]", "0", "prompt[-2:]"]
    assert all(abs(one - pair.corrupted) < 1e-4 for one in metric[0, 0, 2:3])


def test_pairs_that_do_not_correspond_fail_with_the_reason(place: Patches, subtests: pytest.Subtests) -> None:
    source = place.run(
        (CLEAN, "clean", "a"), (CORRUPTED, "corrupted", "a"),
        (CLEAN, "clean", "b"), (CORRUPTED + " and more", "corrupted", "b"),
        (CLEAN, "clean", "alone"),
    )  # fmt: skip
    few = place.run(
        (CLEAN, "clean", "a"), (CORRUPTED, "corrupted", "a"),
        capture={"hooks": ["resid_pre.0", "mlp_out.0"], "mode": "prefill", "positions": [2, 3]},
    )  # fmt: skip
    narrow = place.run(
        (CLEAN, "clean", "a"), (CORRUPTED, "corrupted", "a"),
        capture={"hooks": ["resid_pre.0"], "mode": "prefill", "features": {"first": 8}},
    )  # fmt: skip
    first = {"points": ["resid_pre"], "layers": [0]}
    cases: dict[str, tuple[str, dict[str, Any], list[str | None]]] = {
        "lengths": (source, first, [None, "tokens do not correspond"]),
        "from the end": (source, first | {"positions": [-1, "prompt[-3:]"]}, [None, None]),
        "no such token": (source, first | {"positions": [-400]}, ["no token -400"] * 2),
        "no such hook": (few, {"points": ["attn_out"], "layers": [0]}, ["no whole rows of attn_out.0"]),
        "no such row": (few, first, ["no row of token 0"]),
        "these rows": (few, first | {"positions": [3, 2]}, [None]),
        "features": (narrow, first, ["without features"]),
        "the same token": (
            source, first | {"metric": "logit_difference", "against": 300, "positions": [-1]},
            ["the same token"] * 2,
        ),
        "nothing generated": (
            source, first | {"answer": None, "positions": [-1]}, ["generated no token"] * 2,
        ),
    }  # fmt: skip
    jobs = {title: place.submit(of, **changes) for title, (of, changes, _) in cases.items()}
    place.bench.drain().look()
    for title, (_, _, reasons) in cases.items():
        with subtests.test(case=title):
            made = place.bench.samples(jobs[title])
            for sample, reason in zip(made, reasons, strict=True):
                assert (sample.status is SampleStatus.COMPLETED) == (reason is None), sample.error
                if reason is not None:
                    assert sample.error is not None and reason in sample.error.message, sample.error


def test_answers_are_the_first_generated_tokens_and_interventions_stay(place: Patches) -> None:
    """Sessions under interventions are read under them; the patch comes after them."""
    capture = CAPTURE | {"mode": "generate"}
    plain = place.run((CLEAN, "clean", "a"), capture=capture, sampling={"max_tokens": 2})
    width = place.bench.engine.structure.hooks["resid_pre.0"].width
    noise: dict[str, Any] = {"hook": "resid_pre.0", "op": "add", "positions": [2, 3]}
    noise["vector"] = [3.0, -3.0] * (width // 2)
    steered = place.run((CLEAN, "corrupted", "a"), capture=capture, interventions=[noise])
    (sample,) = place.patched(
        plain, corrupted={"jobs": [steered]}, answer=None, points=["resid_pre"], layers=[0, 1],
        positions=["prompt[2:4]", 2, 1],
    )  # fmt: skip
    pair, metric = place.read(sample)
    reader = SessionReader(place.bench.store, pair.clean_session)
    assert pair.answer == reader.token_ids()[reader.manifest.prompt_tokens]
    hf = place.bench.engine.model.hf
    clean = place.ids(pair, "clean")
    assert pair.clean == pytest.approx(measured(hf, clean, pair.answer, None), abs=1e-4)

    def corrupt(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[0, 2:4] += torch.tensor(noise["vector"])
        return tensor

    with hooked(hf, "resid_pre", 0, corrupt):
        assert pair.corrupted == pytest.approx(measured(hf, clean, pair.answer, None), abs=1e-4)
    assert abs(pair.clean - pair.corrupted) > 1e-3
    assert metric[0, 0, 0] == pytest.approx(pair.clean, abs=1e-4)
    assert metric[0, 0, 2] == pytest.approx(pair.corrupted, abs=1e-4)
    assert metric[0, 0, 1] != pytest.approx(pair.corrupted, abs=1e-4)


def test_a_killed_worker_costs_no_finished_pair_and_others_run_beside(place: Patches) -> None:
    source = place.run(
        *(
            (text, side, group)
            for group in "abcdef"
            for text, side in ((CLEAN, "clean"), (CORRUPTED, "corrupted"))
        )
    )
    job_id = place.submit(source, layers=[0])
    leasing.begin(place.bench.database, job_id, 2, worker_id="wrk_lost")  # a worker that was killed
    chat = insert_chat(place.bench.database, MODEL, max_tokens=4)
    beside = place.bench.submit(inputs=[{"prompt": "a"}] * 6, sampling={"max_tokens": 6})
    place.bench.drain().look()
    before = {one.id: one.session_id for one in place.bench.samples(job_id) if one.session_id}
    assert len(before) == 4
    assert place.bench.status(chat) is place.bench.status(beside) is JobStatus.COMPLETED
    leasing.lose(place.bench.database, "wrk_lost")
    place.bench.drain().look()
    after = {one.id: one.session_id for one in place.bench.samples(job_id)}
    assert place.bench.status(job_id) is JobStatus.COMPLETED
    assert {one: after[one] for one in before} == before and None not in after.values()
    metrics = [place.read(one)[1] for one in place.bench.samples(job_id)]
    for one in metrics[1:]:
        np.testing.assert_allclose(one, metrics[0], atol=1e-5)
    assert place.bench.stored_sessions() == place.bench.indexed_sessions()


@pytest.mark.parametrize("alone", [False, True])
def test_cells_take_turns_with_other_samples(place: Patches, alone: bool) -> None:
    """While a pair has cells for all slots, no other pair is claimed, and half of the places are others'."""
    asked: list[list[Request]] = []
    place = repeatable(place, alone)
    source = place.run(*paired("abcdefgh"))
    positions = [-3, -2, -1]  # after the first token that differs
    job_id = place.submit(source, positions=positions)
    beside = place.bench.submit(inputs=[{"prompt": "a"}] * 12, sampling={"max_tokens": 2})
    watched = Watched(place.bench.engine, lambda pulled: asked.append(list(pulled)))
    Patches(replace(place.bench, engine=watched)).bench.drain().look()  # type: ignore[arg-type]
    assert place.bench.status(job_id) is place.bench.status(beside) is JobStatus.COMPLETED
    order = [one for pulled in asked for one in pulled]
    requests = [one for one in order if CELL in one.key]
    cells = len(POINTS) * place.bench.engine.structure.num_layers * len(positions)
    assert sum(len(one.variants) or 1 for one in requests) == 8 * (2 + cells)
    assert len(requests) == 8 * (2 + (cells if alone else 1))
    # each pair goes on until it has no cells left
    of_pairs = [one.key.partition(CELL)[0] for one in requests]
    assert len(list(itertools.groupby(of_pairs))) == 8
    others = [place for place, one in enumerate(order) if CELL not in one.key]
    assert (max(others) if alone else min(others)) < len(order) // 2, "the other job waited for the pairs"


def test_a_deleted_session_fails_its_pair_alone(place: Patches) -> None:
    source = place.run(
        *(
            (text, side, group)
            for group in "ab"
            for text, side in ((CLEAN, "clean"), (CORRUPTED, "corrupted"))
        )
    )
    job_id = place.submit(source, layers=[0])
    gone = place.bench.samples(job_id)[1].input["clean_session"]
    with place.bench.database.write() as session:
        session_changes.delete(session, gone)
    place.bench.drain().look()
    first, second = place.bench.samples(job_id)
    assert first.status is SampleStatus.COMPLETED
    assert second.error is not None and f"session {gone} was deleted" in second.error.message
