"""Samples of one batch that each choose rows of their own: what reaches the sink, in any budget."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch

from worker.engine.locations import Point
from worker.engine.requests import BufferOptions, RowChunk, RowShaping, StatisticsOptions
from worker.engine.rows import summaries
from worker.engine.rows.rows import RowStream
from worker.engine.rows.selection import ChosenRows, gather_steps

WIDTHS = (4, 4, 6, 4, 4)
DTYPES = (torch.float32, torch.float32, torch.float32, torch.int64, torch.float32)
POINTS = (Point(("a", "a_again")), Point(("b",)), Point(("c",)), Point(("numbers",)), Point(("tail",)))
TAIL = 4  # is computed from the last prompt token on


@dataclass(frozen=True)
class These:
    """Chooses tokens by number, and notes what it is asked."""

    tokens: frozenset[int]
    asked: list[tuple[int, int]] = field(default_factory=list)

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        return [row for row in range(len(prompt_ids)) if row in self.tokens]

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        def judge(row: int, token_id: int) -> bool:
            self.asked.append((row, token_id))
            return row in self.tokens

        return judge


def these(tokens: Iterable[int]) -> These:
    return These(frozenset(tokens))


class Sink:
    def __init__(self) -> None:
        self.chunks: dict[int, dict[str, list[RowChunk]]] = {}

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        for hook, chunk in rows.items():
            self.chunks.setdefault(index, {}).setdefault(hook, []).append(chunk)

    def reset(self, index: int) -> None:
        raise AssertionError("not asked for")


def value(point: int, sample: int, row: int) -> torch.Tensor:
    """The row that `sample` must have for token `row`; unlike every other row."""
    made = torch.arange(WIDTHS[point]) + 10 * row + 1000 * sample + 10_000 * point
    # a number that no float32 holds
    return made.float() if DTYPES[point].is_floating_point else made + 2**40


@dataclass
class Batch:
    prompts: Sequence[int]
    generated: Sequence[int]
    choosers: Sequence[These]
    points: Sequence[int] = (0, 1, 2, 3, 4)
    options: BufferOptions = field(default_factory=BufferOptions)
    shaping: RowShaping = field(default_factory=RowShaping)

    def run(self) -> Sink:
        """Feed the whole batch; what is padding or comes after a sample's end is no number."""
        sink, padded, samples = Sink(), max(self.prompts), range(len(self.prompts))
        ended: list[int | None] = [None] * len(self.prompts)
        tokens: list[list[int]] = [[] for _ in samples]
        stream = RowStream(
            [POINTS[p] for p in self.points], prompt_lengths=self.prompts, padded_length=padded,
            indices=[10 + s for s in samples], positions="all", dtype=None, options=self.options,
            sink=sink, ended_at=ended, shaping=self.shaping,
            prompt_ids=[[100 * s + i for i in range(n)] for s, n in enumerate(self.prompts)],
            generated_ids=tokens, choosers=self.choosers,
        )  # fmt: skip
        try:
            for place, p in enumerate(self.points):
                full = torch.full((len(samples), padded, WIDTHS[p]), -999, dtype=DTYPES[p])
                for s, length in enumerate(self.prompts):
                    for row in range(length):
                        full[s, padded - length + row] = value(p, s, row)
                stream.prefill(place, full[:, -(1 if p == TAIL else padded) :])
            for step in range(1, max(self.generated) + 1):
                for s, count in enumerate(self.generated):
                    if step <= count:  # a token is known before the step that runs it
                        tokens[s].append(7000 + 100 * s + step - 1)
                    if step == count:
                        ended[s] = count
                if step < max(self.generated):
                    stream.decode([self._step(p, step) for p in self.points])
            stream.finish(self.generated)
            assert not stream.errors
        finally:
            stream.close()
        return sink

    def _step(self, point: int, step: int) -> torch.Tensor:
        rows = torch.full((len(self.prompts), 1, WIDTHS[point]), -999, dtype=DTYPES[point])
        for s, length in enumerate(self.prompts):
            if step < self.generated[s]:
                rows[s, 0] = value(point, s, length + step - 1)
        return rows

    def due(self, sample: int, point: int) -> list[int]:
        """The tokens whose rows this sample must have."""
        first = self.prompts[sample] - 1 if point == TAIL else 0
        stop = self.prompts[sample] + max(0, self.generated[sample] - 1)
        return [row for row in range(first, stop) if row in self.choosers[sample].tokens]

    def check(self) -> None:
        sink = self.run()
        for s in range(len(self.prompts)):
            for p in self.points:
                due = self.due(s, p)
                want = torch.stack([value(p, s, row) for row in due]) if due else torch.empty(0, WIDTHS[p])
                for hook in POINTS[p].hooks:
                    chunks = sink.chunks[10 + s][hook]
                    assert [token for chunk in chunks for token in chunk.tokens or ()] == due, (s, hook)
                    assert torch.equal(torch.cat([c.tensor for c in chunks]), want.to(DTYPES[p])), (s, hook)


BUDGETS = [
    BufferOptions(),
    BufferOptions(host_buffer_bytes=900, shard_bytes=300, max_block_steps=3, queue_blocks=2),
    BufferOptions(host_buffer_bytes=1, shard_bytes=1, max_block_steps=1),
]


def test_one_keeps_every_step_beside_one_that_begins_later(subtests: pytest.Subtests) -> None:
    for options in BUDGETS:
        for order in [(0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)]:
            with subtests.test(order=order, options=options):
                prompts, generated = (3, 2, 4, 3), (9, 9, 9, 4)
                choosers = [these(range(99)), these(range(5, 99)), these(range(0, 99, 3)), these([4])]
                Batch(
                    [prompts[i] for i in order],
                    [generated[i] for i in order],
                    [choosers[i] for i in order],
                    options=options,
                ).check()


@pytest.mark.covering(12)
@pytest.mark.parametrize("seed", range(40))
def test_any_choices_in_any_budget(seed: int) -> None:
    dice = random.Random(seed)
    samples = range(dice.randint(1, 6))
    prompts = [dice.randint(1, 9) for _ in samples]
    generated = [dice.randint(1, 20) for _ in samples]
    share = [dice.choice([0.0, 0.1, 0.5, 1.0]) for _ in samples]
    begins = [dice.choice([0, 0, 5, 12]) for _ in samples]
    choosers = [these(r for r in range(begins[s], 40) if dice.random() < share[s]) for s in samples]
    options = BufferOptions(
        host_buffer_bytes=dice.choice([1, 700, 5_000, 1 << 30]),
        shard_bytes=dice.choice([1, 300, 2_000, 1 << 30]),
        device_buffer_bytes=dice.choice([1, 4_000, 1 << 30]),
        max_block_steps=dice.randint(1, 9),
        hand_out_early=dice.choice([True, False]),
    )
    Batch(prompts, generated, choosers, options=options).check()


@pytest.mark.covering(8)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "shaping",
    [
        RowShaping(reduce="mean"),
        RowShaping(reduce="max", columns=(2, 0)),
        RowShaping(reduce="last"),
        RowShaping(statistics=StatisticsOptions(threshold=2000.0, rows=False), columns=slice(2)),
    ],
)
def test_each_choice_is_summed_up_by_itself(
    seed: int, shaping: RowShaping, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    # a block is summed up whole, or a row or two at a time
    monkeypatch.setattr(summaries, "_PIECE_BYTES", dice.choice([1, 500, 1 << 20]))
    samples = range(5)
    batch = Batch(
        [dice.randint(1, 9) for _ in samples],
        [dice.randint(1, 20) for _ in samples],
        [these(r for r in range(40) if dice.random() < s / 4) for s in samples],
        points=(0, 1, 2, 4),
        options=dice.choice(BUDGETS),
        shaping=shaping,
    )
    sink = batch.run()
    for s in samples:
        for p in batch.points:
            due = batch.due(s, p)
            columns = (
                range(WIDTHS[p])
                if shaping.columns is None
                else [2, 0]
                if shaping.reduce != "none"
                else [0, 1]
            )
            rows = torch.stack([value(p, s, row)[list(columns)] for row in due]) if due else None
            for hook in POINTS[p].hooks:
                got = {name: sink.chunks[10 + s][name][0] for name in sink.chunks[10 + s]}
                name = hook if shaping.statistics is None else f"{hook}.mean"
                assert got[name].over == len(due)
                if rows is None:
                    assert got[name].tensor.shape == (0, len(columns))
                    continue
                kinds = {"mean": rows.mean(0), "max": rows.amax(0), "last": rows[-1], "none": rows.mean(0)}
                torch.testing.assert_close(got[name].tensor[0].float(), kinds[shaping.reduce])
                if shaping.statistics is not None:
                    assert got[f"{hook}.count"].tensor.tolist() == [[len(due)]]
                    assert got[f"{hook}.over"].tensor.tolist() == [(rows.abs() > 2000.0).sum(0).tolist()]


def test_each_judge_is_asked_once_for_each_token_that_is_run_of_its_own_sample() -> None:
    batch = Batch((3, 2, 4), (5, 1, 3), [these(range(99)), these(range(99)), these([])])
    batch.run()
    asked = [[(3 + i, 7000 + i) for i in range(4)], [], [(4 + i, 7200 + i) for i in range(2)]]
    assert [chooser.asked for chooser in batch.choosers] == asked


def test_steps_that_are_kept_come_first_and_in_their_order() -> None:
    block = torch.arange(5 * 3 * 2).view(5, 3, 2, 1)
    kept = [
        (True, False, True),
        (True, False, False),
        (True, True, False),
        (True, False, True),
        (True, True, True),
    ]
    got = gather_steps(block, kept)
    assert got.shape == (5, 3, 2, 1)
    for sample in range(3):
        steps = [step for step, keeps in enumerate(kept) if keeps[sample]]
        assert torch.equal(got[: len(steps), sample], block[steps, sample])
    assert gather_steps(block, [(True,) * 3] * 5) is block


def test_a_prompt_that_comes_in_pieces_is_chosen_from_piece_by_piece() -> None:
    chosen = ChosenRows(
        [these([0, 4]), these([1, 2]), these([])], [range(5), range(3), range(4)], [[], [], []]
    )
    whole = torch.full((3, 5, 1), -1.0)
    for sample, length in enumerate((5, 3, 4)):
        whole[sample, 5 - length :, 0] = torch.arange(length) + 10.0 * sample
    found: list[list[tuple[int, float]]] = [[], [], []]
    for start, stop in ((0, 2), (2, 4), (4, 5)):
        part = chosen.of_prompt(whole[:, start:stop], after=5 - stop)
        for sample in range(3):
            rows = part.tensor[sample, part.starts[sample] :, 0].tolist()
            found[sample] += [(part.first_rows[sample] + i, row) for i, row in enumerate(rows)]
    assert found == [[(0, 0.0), (1, 4.0)], [(0, 11.0), (1, 12.0)], []]
