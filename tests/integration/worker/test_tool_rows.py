"""Rows of samples with tools: what is chosen, summed up and changed, against what all rows say."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from actograph.contract.resources import JobStatus, Sample, SampleStatus
from storage.sessions.manifest import SessionManifest
from storage.sessions.writer import SessionReader
from tests.support.additions import TASK, additions

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

PROBLEMS = additions((14, 23), (57, 68), (90, 11))
HOOKS = ["resid_post.0", "mlp_in.1", "logits"]


@dataclass
class Session:
    """A stored session, read as a whole."""

    sample: Sample
    manifest: SessionManifest
    token_ids: list[int]
    tensors: dict[str, torch.Tensor]
    tokens: dict[str, list[int]]

    def rows(self, hook: str) -> dict[int, torch.Tensor]:
        return dict(zip(self.tokens[hook], self.tensors[hook], strict=True))

    def turn_tokens(self) -> Iterator[list[int]]:
        """Token numbers of each turn's own prompt and answer."""
        numbers: list[int] = []
        for turn in self.manifest.turns:
            numbers = [*numbers[: turn.context or 0], *range(turn.start, turn.stop)]
            yield numbers

    def segment(self, *names: str) -> set[int]:
        return {n for s in self.manifest.segments if s.name in names for n in range(s.start, s.stop)}

    @property
    def generated(self) -> set[int]:
        turns = self.manifest.turns
        return {n for t in turns for n in range(t.start + t.prompt_tokens, t.stop)}


def sessions(bench: "Bench", count: int = 2, **changes: Any) -> list[Session]:
    spec = {"task": TASK, "tools": "calculator", "sampling": {"max_tokens": 64}} | changes
    job_id = bench.submit(PROBLEMS[:count], **spec)
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    found = []
    for sample in bench.samples(job_id):
        assert sample.status is SampleStatus.COMPLETED, sample.error
        assert sample.session_id is not None
        reader = SessionReader(bench.store, sample.session_id)
        reader.verify()
        tensors = {}
        for name in reader.manifest.tensors:
            data = reader.rows(name, 0, reader.manifest.tensors[name].shape[0])
            kind = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}[data.dtype]
            tensors[name] = torch.empty(data.shape, dtype=kind)
            if data.shape[0]:
                tensors[name] = torch.frombuffer(bytearray(data.data), dtype=kind).view(data.shape)
        tokens = {
            name: list(reader.tokens_of_rows(name))
            for name, tensor in reader.manifest.tensors.items()
            if tensor.summary is None
        }
        found.append(Session(sample, reader.manifest, list(reader.token_ids()), tensors, tokens))
    return found


@pytest.fixture
def everything(bench: "Bench") -> list[Session]:
    """All rows of all turns."""
    whole = sessions(bench, capture={"hooks": HOOKS})
    assert all(len(session.manifest.turns) == 2 for session in whole)
    return whole


CHOICES: list[tuple[Any, Callable[[Session], set[int]]]] = [
    ("all", lambda s: set(range(len(s.token_ids)))),
    ({"stride": 3}, lambda s: set(range(0, len(s.token_ids), 3))),
    ([0, 7, -1, 100], lambda s: {0, 7, s.manifest.prompt_tokens - 1, 100}),
    ("last", lambda s: {len(s.token_ids) - 2}),
    ("generated", lambda s: s.generated),
    (["tool_call", "tool_result"], lambda s: s.segment("tool_call", "tool_result")),
    ("generated[1::3]", lambda s: set(sorted(s.generated)[1::3])),
]


#: what they mean of a session, and of its generated tokens that the model ran
FROM_THE_END: dict[str, Callable[[Session, list[int]], Iterable[int]]] = {
    "generated[-5:]": lambda s, ran: ran[-5:],
    "generated[-100:-3]": lambda s, ran: ran[-100:-3],
    "turn.-1[-4::2]": lambda s, ran: ran[-4::2],
    "all[-1]": lambda s, ran: ran[-1:],
    "tool_result[-2:]": lambda s, ran: sorted(s.segment("tool_result"))[-2:],
    "think[-2:]": lambda s, ran: [],
}


@pytest.mark.covering(2)
@pytest.mark.parametrize(("positions", "meant"), CHOICES)
def test_rows_are_chosen_and_summed_up_over_all_turns(
    bench: "Bench", everything: list[Session], positions: Any, meant: Callable[[Session], set[int]]
) -> None:
    base = {"hooks": HOOKS, "positions": positions}
    chosen = sessions(bench, capture=base)
    reduced = {r: sessions(bench, capture=base | {"reduce": r}) for r in ("mean", "max", "last")}
    stats = {"threshold": 0.5, "tensors": True}
    counted = sessions(bench, capture=base | {"stats": stats})
    for place, whole in enumerate(everything):
        for hook in HOOKS:
            due = {n: row for n, row in whole.rows(hook).items() if n in meant(whole)}
            rows = chosen[place].rows(hook)
            assert list(rows) == list(due)
            if not due:
                continue
            x = torch.stack(list(due.values()))
            torch.testing.assert_close(torch.stack(list(rows.values())), x, atol=1e-4, rtol=1e-4)
            for name, value in (("mean", x.mean(0)), ("max", x.amax(0)), ("last", x[-1])):
                session = reduced[name][place]
                assert session.manifest.tensors[hook].over == len(due)
                torch.testing.assert_close(session.tensors[hook][0], value, atol=1e-4, rtol=1e-4)
            check_statistics(counted[place], hook, x)
            assert counted[place].tokens[hook] == list(due)


def test_rows_are_chosen_from_the_end_when_it_is_known(
    bench: "Bench", everything: list[Session], subtests: pytest.Subtests
) -> None:
    for positions, meant in FROM_THE_END.items():
        chosen = sessions(bench, capture={"hooks": HOOKS, "positions": positions})
        for whole, session in zip(everything, chosen, strict=True):
            ran = [token for token in sorted(whole.generated) if token < len(whole.token_ids) - 1]
            for hook in HOOKS:
                with subtests.test(positions=positions, hook=hook):
                    wanted = {n: row for n, row in whole.rows(hook).items() if n in meant(whole, ran)}
                    rows = session.rows(hook)
                    assert list(rows) == list(wanted)
                    for token, row in rows.items():
                        torch.testing.assert_close(row, wanted[token], atol=1e-4, rtol=1e-4)


def check_statistics(session: Session, hook: str, x: torch.Tensor) -> None:
    found = {name: session.tensors[f"{hook}.{name}"][0] for name in ("count", "mean", "variance", "min")}
    found |= {name: session.tensors[f"{hook}.{name}"][0] for name in ("max", "rms", "kurtosis", "over")}
    y = x.double()
    deviation = y - y.mean(0)
    assert found["count"].tolist() == [len(x)]
    wanted = {
        "mean": y.mean(0),
        "variance": deviation.square().mean(0),
        "min": y.amin(0),
        "max": y.amax(0),
        "rms": y.square().mean(0).sqrt(),
    }
    if len(x) > 2:
        wanted["kurtosis"] = deviation.pow(4).mean(0) / deviation.square().mean(0).square() - 3
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=1e-4, rtol=1e-4, msg=f"{hook}.{name}")
    near = ((y.abs() - 0.5).abs() < 1e-4).any(0)
    assert torch.equal(found["over"][~near], (y.abs() > 0.5).sum(0)[~near])


def test_a_number_beyond_the_sample_fails_it_with_the_reason(bench: "Bench") -> None:
    capture = {"hooks": HOOKS[:1], "positions": [5, 4000]}
    job_id = bench.submit(
        PROBLEMS[:1], task=TASK, tools="calculator", sampling={"max_tokens": 64}, capture=capture
    )
    bench.drain().look()
    [sample] = bench.samples(job_id)
    assert sample.error is not None
    assert "positions lists token 4000, which the model did not run" in sample.error.message


@contextmanager
def added(bench: "Bench", vector: torch.Tensor, places: list[int]) -> Iterator[None]:
    """The vector is added to the output of layer 0 at these places of the next forward."""

    def change(module: Any, inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        states[0, places] += vector

    handle = bench.engine.model.hf.model.layers[0].register_forward_hook(change)
    try:
        yield
    finally:
        handle.remove()


STEERED: list[tuple[Any, Callable[[Session], set[int]]]] = [
    ("tool_call", lambda s: s.segment("tool_call")),
    (["tool_result", "answer"], lambda s: s.segment("tool_result", "answer")),
    ("generated", lambda s: s.generated),
    ("prompt", lambda s: s.segment("prompt")),
    ("last_prompt", lambda s: {s.manifest.prompt_tokens - 1}),
    ({"start": 3, "stop": 150}, lambda s: set(range(3, 150))),
    ({"stride": 5}, lambda s: set(range(0, len(s.token_ids), 5))),
    ("generated[2:40]", lambda s: set(sorted(s.generated)[2:40])),
    ("tool_result[1:4]", lambda s: set(sorted(s.segment("tool_result"))[1:4])),
    ([2, -2, 140], lambda s: {2, s.manifest.prompt_tokens - 2, 140}),
]


@pytest.mark.covering(4)
@pytest.mark.parametrize(("positions", "meant"), STEERED)
def test_interventions_change_a_token_in_every_turn_that_runs_it(
    bench: "Bench", positions: Any, meant: Callable[[Session], set[int]]
) -> None:
    torch.manual_seed(0)
    vector = torch.randn(bench.engine.structure.hidden_size) * 0.3
    change = {"hook": "resid_post.0", "op": "add", "vector": vector.tolist(), "positions": positions}
    for session in sessions(bench, 3, capture={"hooks": HOOKS}, interventions=[change]):
        stored = {hook: session.rows(hook) for hook in HOOKS}
        assert meant(session) & set(stored[HOOKS[0]])
        seen: set[int] = set()
        for turn, numbers in zip(session.manifest.turns, session.turn_tokens(), strict=True):
            ids = [session.token_ids[n] for n in numbers]
            where = [place for place, n in enumerate(numbers) if n in meant(session)]
            logits = forward(bench, ids, vector, where)
            own = [p for p, n in enumerate(numbers[:-1]) if n not in seen and n in stored["logits"]]
            assert own
            rows = torch.stack([stored["logits"][numbers[p]] for p in own])
            torch.testing.assert_close(rows, logits[own], atol=1e-3, rtol=1e-3)
            first = len(numbers) - (turn.stop - turn.start - turn.prompt_tokens)
            assert logits[first - 1 : -1].argmax(-1).tolist() == ids[first:]
            seen.update(numbers[:-1])


def forward(bench: "Bench", ids: list[int], vector: torch.Tensor, where: list[int]) -> torch.Tensor:
    with torch.inference_mode(), added(bench, vector, where):
        logits: torch.Tensor = bench.engine.model.hf(input_ids=torch.tensor([ids])).logits[0]
    return logits


def test_steered_conditions_and_samples_share_a_batch(bench: "Bench") -> None:
    """Choices of one intervention differ from sample to sample of a batch: as alone, so together."""
    width = bench.engine.structure.hidden_size
    change = {"hook": "resid_post.1", "op": "add", "vector": [0.2] * width, "positions": "tool_call"}
    common: Mapping[str, Any] = {"capture": {"hooks": HOOKS[:1]}}
    conditions = [{"name": "plain"}, {"name": "steered", "interventions": [change]}]
    together = sessions(bench, 2, conditions=conditions, **common)
    alone = sessions(bench, 2, interventions=[change], **common) + sessions(bench, 2, **common)
    key = {(s.sample.sample_index, s.sample.condition): s.token_ids for s in together}
    assert [key[s.sample.sample_index, "steered"] for s in alone[:2]] == [s.token_ids for s in alone[:2]]
    assert [key[s.sample.sample_index, "plain"] for s in alone[2:]] == [s.token_ids for s in alone[2:]]
