"""The row path alone, fed with made-up tensors: what comes out, in which pieces, in how much memory."""

import random
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from actograph.contract.errors import CaptureFailed
from actograph.contract.row_selection import NamedPositions
from worker.engine.locations import Point
from worker.engine.requests import BufferOptions, Reduce, RowChunk, RowShaping, StatisticsOptions
from worker.engine.rows.row_writer import expected_rows
from worker.engine.rows.rows import RowStream

PROMPTS = (3, 7, 5)
GENERATED = (9, 2, 14)
PADDED = max(PROMPTS)
WIDTHS = (4, 4, 6, 4)  # the last point is computed for the last prompt token only
POINTS = (Point(("a", "a_again")), Point(("b",)), Point(("c",)), Point(("tail",)))
AS_COMPUTED = RowShaping()
SMALL = BufferOptions(
    host_buffer_bytes=900, shard_bytes=300, device_buffer_bytes=1, max_block_steps=3, queue_blocks=2
)


class Chunks:
    """A sink that keeps everything, and can fail for one sample."""

    def __init__(self, fail: int | None = None, delay: float = 0.0) -> None:
        self.calls: list[tuple[int, dict[str, RowChunk]]] = []
        self.fail = fail
        self.delay = delay

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        time.sleep(self.delay)
        if index == self.fail:
            raise OSError("disk full")
        self.calls.append((index, dict(rows)))

    def reset(self, index: int) -> None:
        raise AssertionError("not asked for")

    def joined(self, index: int) -> dict[str, tuple[int, torch.Tensor]]:
        parts: dict[str, list[RowChunk]] = {}
        for i, rows in self.calls:
            if i == index:
                for hook, chunk in rows.items():
                    assert chunk.tensor.is_contiguous()
                    parts.setdefault(hook, []).append(chunk)
        out = {}
        for hook, chunks in parts.items():
            row = chunks[0].first_row
            for chunk in chunks:
                assert chunk.first_row == row, "chunks must follow each other without gaps"
                row += chunk.tensor.shape[0]
            out[hook] = (chunks[0].first_row, torch.cat([c.tensor for c in chunks]))
        return out


def value(point: int, sample: int, row: int) -> torch.Tensor:
    """The row that `sample` must have for token `row`; unlike every other row."""
    return torch.arange(WIDTHS[point]) + 10.0 * row + 1000.0 * sample + 10_000.0 * point


def run(
    sink: Chunks,
    *,
    positions: NamedPositions = "all",
    options: BufferOptions = SMALL,
    dtype: torch.dtype | None = None,
    source: torch.dtype = torch.float32,
    generated: Sequence[int] = GENERATED,
    prompts: Sequence[int] = PROMPTS,
    shaping: RowShaping = AS_COMPUTED,
) -> RowStream:
    """Feed a whole batch; rows that are padding or come after a sample's end are NaN."""
    padded = max(prompts)
    ended: list[int | None] = [None] * len(prompts)
    stream = RowStream(
        POINTS,
        prompt_lengths=prompts,
        padded_length=padded,
        indices=range(10, 10 + len(prompts)),
        positions=positions,
        dtype=dtype,
        options=options,
        sink=sink,
        ended_at=ended,
        shaping=shaping,
    )
    try:
        for p, width in enumerate(WIDTHS):
            tokens = 1 if p == 3 else padded
            full = torch.full((len(prompts), padded, width), torch.nan)
            for s, length in enumerate(prompts):
                for row in range(length):
                    full[s, padded - length + row] = value(p, s, row)
            stream.prefill(p, full[:, -tokens:].to(source))
        for step in range(1, max(generated)):
            for s, count in enumerate(generated):
                if count == step:
                    ended[s] = count
            values = []
            for p, width in enumerate(WIDTHS):
                rows = torch.full((len(prompts), 1, width), torch.nan)
                for s, length in enumerate(prompts):
                    if step < generated[s]:
                        rows[s, 0] = value(p, s, length + step - 1)
                values.append(rows.to(source))
            stream.decode(values)
        stream.finish(generated)
    finally:
        stream.close()
    return stream


def check(
    sink: Chunks,
    positions: NamedPositions = "all",
    *,
    generated: Sequence[int] = GENERATED,
    dtype: torch.dtype = torch.float32,
    skip: int | None = None,
    prompts: Sequence[int] = PROMPTS,
) -> None:
    for s, (length, count) in enumerate(zip(prompts, generated, strict=True)):
        if s == skip:
            continue
        got = sink.joined(10 + s)
        assert set(got) == {"a", "a_again", "b", "c", "tail"}
        for p, point in enumerate(POINTS):
            rows = expected_rows(positions, length, count, tail_only=p == 3 and max(prompts) > 1)
            want = [value(p, s, row) for row in rows]
            for hook in point.hooks:
                first, tensor = got[hook]
                assert first == rows.start
                assert tensor.dtype == dtype
                assert tensor.shape == (len(rows), WIDTHS[p])
                if want:
                    assert torch.equal(tensor, torch.stack(want).to(dtype))


def test_every_row_arrives_once_and_in_order(subtests: pytest.Subtests) -> None:
    for positions in ["all", "prompt", "generated", "last", "last_prompt"]:
        for options in [SMALL, BufferOptions()]:
            with subtests.test(options=options, positions=positions):
                sink = Chunks()
                stream = run(sink, positions=positions, options=options)
                assert not stream.errors
                check(sink, positions)


def test_samples_that_end_with_their_first_token(subtests: pytest.Subtests) -> None:
    for positions in ["all", "generated", "last"]:
        with subtests.test(positions=positions):
            sink = Chunks()
            run(sink, positions=positions, generated=(1, 1, 1))
            check(sink, positions, generated=(1, 1, 1))
            sink = Chunks()
            run(sink, positions=positions, generated=(1, 6, 2))
            check(sink, positions, generated=(1, 6, 2))


@pytest.mark.covering(12)
@pytest.mark.parametrize("seed", range(60))
def test_any_batch_in_any_budget(seed: int) -> None:
    dice = random.Random(seed)
    samples = dice.randint(1, 6)
    prompts = [dice.randint(1, 12) for _ in range(samples)]
    generated = [dice.randint(1, 30) for _ in range(samples)]
    positions = dice.choice(["all", "all", "all", "prompt", "generated", "last", "last_prompt"])
    options = BufferOptions(
        host_buffer_bytes=dice.choice([1, 700, 5_000, 1 << 30]),
        shard_bytes=dice.choice([1, 300, 2_000, 1 << 30]),
        device_buffer_bytes=dice.choice([1, 4_000, 1 << 30]),
        max_block_steps=dice.randint(1, 9),
        queue_blocks=dice.randint(1, 4),
        hand_out_early=dice.choice([True, False]),
    )
    sink = Chunks()
    stream = run(sink, positions=positions, options=options, prompts=prompts, generated=generated)  # type: ignore[arg-type]
    assert not stream.errors
    check(sink, positions, generated=generated, prompts=prompts)  # type: ignore[arg-type]


def test_expected_rows() -> None:
    assert expected_rows("all", 4, 3, tail_only=False) == range(0, 6)
    assert expected_rows("all", 4, 3, tail_only=True) == range(3, 6)
    assert expected_rows("prompt", 4, 3, tail_only=False) == range(0, 4)
    assert expected_rows("generated", 4, 3, tail_only=False) == range(4, 6)
    assert expected_rows("last", 4, 3, tail_only=False) == range(5, 6)
    assert expected_rows("last_prompt", 4, 3, tail_only=False) == range(3, 4)


def test_small_budgets_give_several_chunks_and_large_ones_one() -> None:
    several, one = Chunks(), Chunks()
    run(several)
    run(one, options=BufferOptions())
    assert len([i for i, _ in several.calls if i == 12]) > 3
    assert [i for i, _ in one.calls] == [10, 11, 12]
    for index in (10, 11, 12):
        a, b = several.joined(index), one.joined(index)
        assert {h: f for h, (f, _) in a.items()} == {h: f for h, (f, _) in b.items()}
        assert all(torch.equal(a[h][1], b[h][1]) for h in a)


def test_chunks_stay_near_the_shard_size() -> None:
    sink = Chunks()
    options = BufferOptions(shard_bytes=400, max_block_steps=4)
    run(sink, options=options)
    check(sink)
    largest_row = 4 * (4 + 4 + 4 + 6 + 4)
    for _, rows in sink.calls:
        assert sum(c.tensor.nbytes for c in rows.values()) <= 400 + 4 * largest_row


def test_rows_keep_their_dtype_or_take_the_one_asked_for() -> None:
    sink = Chunks()
    run(sink, source=torch.bfloat16)
    for s in range(3):
        for p, point in enumerate(POINTS):
            first, tensor = sink.joined(10 + s)[point.hooks[0]]
            assert tensor.dtype == torch.bfloat16
            assert torch.equal(tensor[0], value(p, s, first).bfloat16())
    sink = Chunks()
    run(sink, dtype=torch.float16)
    check(sink, dtype=torch.float16)


def test_a_failing_sink_fails_its_own_sample_only() -> None:
    sink = Chunks(fail=11)
    stream = run(sink)
    assert list(stream.errors) == [1]
    assert isinstance(stream.errors[1], OSError)
    check(sink, skip=1)


def test_missing_rows_are_an_error() -> None:
    sink = Chunks()
    stream = RowStream(
        (Point(("a",)),),
        prompt_lengths=(2,),
        padded_length=2,
        indices=(0,),
        positions="all",
        dtype=None,
        options=BufferOptions(),
        sink=sink,
        ended_at=[None],
    )
    stream.prefill(0, torch.zeros(1, 2, 4))
    stream.finish((5,))  # four decode steps never came
    stream.close()
    assert "2 rows were captured, 6 expected" in str(stream.errors[0])


def test_wrong_shapes_are_refused() -> None:
    def stream() -> RowStream:
        return RowStream(
            (Point(("a",)),),
            prompt_lengths=(2,),
            padded_length=2,
            indices=(0,),
            positions="all",
            dtype=None,
            options=BufferOptions(),
            sink=Chunks(),
            ended_at=[None],
        )

    first = stream()
    with pytest.raises(CaptureFailed, match="a: the prompt gave"):
        first.prefill(0, torch.zeros(2, 2, 4))
    first.close()
    second = stream()
    second.prefill(0, torch.zeros(1, 2, 4))
    with pytest.raises(CaptureFailed, match="a: a decode step gave"):
        second.decode([torch.zeros(1, 1, 5)])
    second.close()


class Meter(Chunks):
    """Counts what the writer holds whenever it hands something over."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.stream: Any = None

    def write(self, index: int, chunk: Mapping[str, RowChunk]) -> None:
        rows = self.stream._writer.held
        held = sum(s.tensor.nbytes for strips in rows._strips.values() for s in strips)
        held += sum(part.nbytes for b in rows._blocks for part in b.parts)
        assert held == rows.bytes
        self.peak = max(self.peak, held)


@pytest.mark.parametrize("tokens", [200, 2000])
def test_memory_does_not_grow_with_max_tokens(tokens: int) -> None:
    sink = Meter()
    options = BufferOptions(
        host_buffer_bytes=20_000, shard_bytes=1 << 30, device_buffer_bytes=2_000, max_block_steps=64
    )
    stream = RowStream(
        (Point(("a",)), Point(("b",))),
        prompt_lengths=(4, 4),
        padded_length=4,
        indices=(0, 1),
        positions="all",
        dtype=None,
        options=options,
        sink=sink,
        ended_at=[None, None],
    )
    sink.stream = stream
    largest = 0
    for p in range(2):
        stream.prefill(p, torch.zeros(2, 4, 16))
    for _ in range(tokens - 1):
        values = [torch.zeros(2, 1, 16), torch.zeros(2, 1, 16)]
        of_the_step = [weakref.ref(value) for value in values]
        stream.decode(values)
        del values
        assert all(ref() is None for ref in of_the_step), "the model's tensors must not outlive their step"
        blocks: Any = stream._blocks
        largest = max(largest, sum(block.nbytes for block in blocks._filling))
    stream.finish((tokens, tokens))
    stream.close()
    assert not stream.errors
    assert 0 < largest <= 2_000
    assert sink.peak <= 20_000


@pytest.mark.integration
def test_decoding_waits_for_a_slow_sink_and_cancel_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.engine.rows.rows._STOP_PATIENCE_SECONDS", 0.0)
    sink = Chunks(delay=0.05)
    stopped = threading.Event()
    stream = RowStream(
        (Point(("a",)),),
        prompt_lengths=(1,),
        padded_length=1,
        indices=(0,),
        positions="all",
        dtype=None,
        options=BufferOptions(host_buffer_bytes=1, max_block_steps=1, queue_blocks=1),
        sink=sink,
        ended_at=[None],
        should_stop=stopped.is_set,
    )
    stream.prefill(0, torch.zeros(1, 1, 4))
    begin = time.monotonic()
    for _ in range(8):
        stream.decode([torch.zeros(1, 1, 4)])
    assert time.monotonic() - begin > 0.2  # five or more writes were waited for
    sink.delay = 1.0
    stopped.set()
    for _ in range(20):
        stream.decode([torch.zeros(1, 1, 4)])
    stream.close()
    assert len(sink.calls) < 20


@pytest.mark.integration
@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_a_cancel_at_the_very_end_drops_rows_only_where_the_sink_is_too_slow(
    monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr("worker.engine.rows.rows._STOP_PATIENCE_SECONDS", patience)
    sink = Chunks(delay=0.3)
    stream = RowStream(
        (Point(("a",)),),
        prompt_lengths=(1,),
        padded_length=1,
        indices=(0,),
        positions="all",
        dtype=None,
        options=BufferOptions(host_buffer_bytes=1, max_block_steps=1, queue_blocks=1),
        sink=sink,
        ended_at=[None],
        should_stop=lambda: True,
    )
    stream.prefill(0, torch.zeros(1, 1, 4))
    for _ in range(4):
        stream.decode([torch.zeros(1, 1, 4)])
    assert stream.finish((5,)) is (patience > 0)
    stream.close()
    assert not stream._thread.is_alive()


def test_an_error_of_the_writer_reaches_the_decode_thread() -> None:
    stream = RowStream(
        (Point(("a",)),),
        prompt_lengths=(2,),
        padded_length=2,
        indices=(0,),
        positions="all",
        dtype=None,
        options=BufferOptions(),
        sink=Chunks(),
        ended_at=[None],
    )
    stream.prefill(0, torch.zeros(1, 2, 4))
    stream._writer._emit = lambda *_, **__: 1 // 0  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError):
        stream.finish((1,))
    stream.close()
    assert not stream._thread.is_alive()


def test_close_is_safe_at_any_time() -> None:
    stream = RowStream(
        (Point(("a",)),),
        prompt_lengths=(2,),
        padded_length=2,
        indices=(0,),
        positions="all",
        dtype=None,
        options=BufferOptions(),
        sink=Chunks(),
        ended_at=[None],
    )
    stream.prefill(0, torch.zeros(1, 2, 4))
    stream.close()
    stream.close()
    assert not stream._thread.is_alive()


def test_chosen_columns_are_those_columns_of_all_rows(subtests: pytest.Subtests) -> None:
    for positions in ["all", "prompt", "generated", "last", "last_prompt"]:
        for columns in [slice(3), (3, 0)]:
            with subtests.test(columns=columns, positions=positions):
                whole, part = Chunks(), Chunks()
                run(whole, positions=positions)
                run(part, positions=positions, shaping=RowShaping(columns=columns))
                for s in range(len(PROMPTS)):
                    want, got = whole.joined(10 + s), part.joined(10 + s)
                    assert got.keys() == want.keys()
                    for hook, (first, rows) in want.items():
                        chosen = list(range(3)) if isinstance(columns, slice) else list(columns)
                        assert got[hook][0] == first
                        assert torch.equal(got[hook][1], rows[:, chosen]), hook


def test_a_column_that_a_hook_lacks_is_an_error_with_its_width() -> None:
    with pytest.raises(CaptureFailed, match=r"a has 4 features \(0 to 3\); feature 5"):
        run(Chunks(), shaping=RowShaping(columns=(5, 1)))


def test_integers_are_stored_as_they_are_whatever_the_dtype() -> None:
    sink = Chunks()
    run(sink, source=torch.int64, generated=(1, 1, 1), positions="prompt", dtype=torch.float16)
    assert {rows.dtype for _, rows in sink.joined(10).values()} == {torch.int64}


@pytest.mark.covering(10)
@pytest.mark.parametrize("positions", ["all", "prompt", "generated", "last", "last_prompt"])
@pytest.mark.parametrize("reduce", ["mean", "max", "last"])
@pytest.mark.parametrize("options", [SMALL, BufferOptions()])
def test_a_reduced_row_is_that_of_all_rows(
    positions: NamedPositions, reduce: Reduce, options: BufferOptions
) -> None:
    whole, part = Chunks(), Chunks()
    run(whole, positions=positions, generated=(9, 1, 14))
    stream = run(
        part, positions=positions, options=options, generated=(9, 1, 14), shaping=RowShaping(reduce=reduce)
    )
    assert not stream.errors
    for s in range(len(PROMPTS)):
        assert len([call for call in part.calls if call[0] == 10 + s]) == 1
        got = part.calls[[index for index, _ in part.calls].index(10 + s)][1]
        for hook, (_, rows) in whole.joined(10 + s).items():
            assert got[hook].over == len(rows)
            if len(rows):
                want = {"mean": rows.mean(0), "max": rows.amax(0), "last": rows[-1]}[reduce]
                assert torch.allclose(got[hook].tensor, want[None], rtol=1e-6)
            else:
                assert got[hook].tensor.shape == (0, rows.shape[1])


@pytest.mark.parametrize("keep", [True, False])
def test_statistics_go_beside_the_rows_or_instead_of_them(keep: bool) -> None:
    whole, part = Chunks(), Chunks()
    run(whole)
    run(part, shaping=RowShaping(statistics=StatisticsOptions(threshold=2000.0, rows=keep)))
    for s in range(len(PROMPTS)):
        want, got = whole.joined(10 + s), part.joined(10 + s)
        assert (want.keys() <= got.keys()) == keep
        for hook, (first, rows) in want.items():
            if keep:
                assert got[hook][0] == first and torch.equal(got[hook][1], rows)
            assert got[f"{hook}.count"][1].tolist() == [[len(rows)]]
            assert torch.allclose(got[f"{hook}.mean"][1], rows.double().mean(0))
            assert torch.allclose(got[f"{hook}.variance"][1], rows.double().var(0, unbiased=False))
            assert torch.equal(got[f"{hook}.over"][1], (rows.abs() > 2000).sum(0)[None])
            assert got[f"{hook}.max"][1].dtype == torch.float64


def test_integers_are_not_summed_up() -> None:
    for shaping in (RowShaping(reduce="mean"), RowShaping(statistics=StatisticsOptions())):
        with pytest.raises(CaptureFailed, match="a holds integers"):
            run(Chunks(), source=torch.int64, generated=(1, 1, 1), positions="prompt", shaping=shaping)
    sink = Chunks()
    run(
        sink,
        source=torch.int64,
        generated=(1, 1, 1),
        positions="last_prompt",
        shaping=RowShaping(reduce="last"),
    )
    assert sink.joined(10)["a"][1].dtype == torch.int64
