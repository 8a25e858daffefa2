"""Who hands rows to the sink, and when: samples side by side at the end, and one that ends early before."""

import threading
from collections.abc import Mapping

import pytest
import torch

from worker.engine.locations import Point
from worker.engine.requests import BufferOptions, RowChunk, RowShaping, StatisticsOptions
from worker.engine.rows.rows import RowStream

ROWS, WIDTH = 512, 1024
AS_COMPUTED = RowShaping()
SAMPLE_BYTES = 2 * ROWS * WIDTH * 4  # two points


class Together:
    """Lets nobody out of `write` before `expected` threads have been in it at once, or `seconds` are up."""

    def __init__(self, expected: int, seconds: float = 120) -> None:
        self.expected, self.most, self.seconds = expected, 0, seconds
        self.rows: dict[int, Mapping[str, RowChunk]] = {}
        self.threads: set[str] = set()
        self._inside = 0
        self._changed = threading.Condition()

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        assert not torch.is_grad_enabled()
        with self._changed:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self.expected, timeout=self.seconds)
            self._inside -= 1
        self.threads.add(threading.current_thread().name)
        self.rows[index] = {name: RowChunk(c.first_row, c.tensor.clone()) for name, c in rows.items()}

    def reset(self, index: int) -> None:
        raise AssertionError("not asked for")


class Kept:
    """Keeps the chunks of each sample."""

    def __init__(self) -> None:
        self.chunks: dict[int, list[Mapping[str, RowChunk]]] = {}
        self.changed = threading.Condition()

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        with self.changed:
            self.chunks.setdefault(index, []).append(rows)
            self.changed.notify_all()

    def reset(self, index: int) -> None:
        raise AssertionError("not asked for")


def texts(sink: Together, samples: int, *, shard_bytes: int, rows: int = ROWS) -> RowStream:
    """Prompts of `rows` tokens and nothing generated."""
    stream = RowStream(
        (Point(("a",)), Point(("b",))),
        prompt_lengths=(rows,) * samples,
        padded_length=rows,
        indices=range(samples),
        positions="all",
        dtype=None,
        options=BufferOptions(shard_bytes=shard_bytes),
        sink=sink,
        ended_at=[0] * samples,
    )
    for point in range(2):
        of_sample = torch.arange(samples, dtype=torch.float32).view(-1, 1, 1) + 100 * point
        stream.prefill(point, of_sample.expand(samples, rows, WIDTH).contiguous())
    stream.finish((0,) * samples)
    stream.close()
    return stream


def test_large_samples_are_handed_out_side_by_side_within_a_shards_memory(subtests: pytest.Subtests) -> None:
    for shards, threads in [(8, 4), (4, 4), (3, 3), (2, 2), (1, 1)]:
        with subtests.test(shards=shards, threads=threads):
            sink = Together(threads)
            stream = texts(sink, 7, shard_bytes=shards * SAMPLE_BYTES)
            assert not stream.errors
            assert sink.most == threads
            assert sorted(sink.rows) == list(range(7))
            for index, rows in sink.rows.items():
                assert (rows["a"].tensor == index).all()
                assert (rows["b"].tensor == index + 100).all()
                assert rows["a"].tensor.shape == (ROWS, WIDTH)


def test_small_samples_need_no_threads() -> None:
    sink = Together(2, seconds=0.3)  # in vain
    texts(sink, 3, shard_bytes=1 << 30, rows=2)
    assert sink.most == 1
    assert sink.threads == {"row-writer"}


def test_a_sample_that_fails_beside_others_fails_alone() -> None:
    class Full(Together):
        def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
            super().write(index, rows)
            if index == 1:
                raise OSError("disk full")

    sink = Full(4)
    stream = texts(sink, 6, shard_bytes=1 << 30)
    assert [str(error) for error in stream.errors.values()] == ["disk full"]
    assert list(stream.errors) == [1]
    assert sorted(sink.rows) == list(range(6))


def test_what_the_writer_itself_meets_in_a_thread_ends_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> torch.Tensor:
        raise MemoryError("no room for rows")

    monkeypatch.setattr("worker.engine.rows.held_rows.host_empty", no_memory)
    with pytest.raises(MemoryError, match="no room for rows"):
        texts(Together(1), 4, shard_bytes=1 << 30)


def came_before_the_end(*, early: bool | None, shaping: RowShaping = AS_COMPUTED) -> tuple[set[int], Kept]:
    """Of samples that end after 1, 4, 5 and 20 tokens, those whose rows came while the last one went on."""
    ends, sink = (1, 4, 5, 20), Kept()
    ended: list[int | None] = [None] * len(ends)
    stream = RowStream(
        (Point(("a",)),),
        prompt_lengths=(3,) * len(ends),
        padded_length=3,
        indices=range(len(ends)),
        positions="all",
        dtype=None,
        options=BufferOptions(max_block_steps=2, hand_out_early=early),
        sink=sink,
        ended_at=ended,
        shaping=shaping,
    )
    stream.prefill(0, torch.zeros(len(ends), 3, 4))
    for step in range(1, max(ends)):
        for sample, end in enumerate(ends):
            if end == step:
                ended[sample] = end
        stream.decode([torch.full((len(ends), 1, 4), float(step))])
    with sink.changed:
        sink.changed.wait_for(
            lambda: len(sink.chunks) == 3, timeout=0.2 if not early or shaping.summarises else 30
        )
    before = set(sink.chunks)
    ended[3] = 20
    stream.finish(ends)
    stream.close()
    assert not stream.errors
    return before, sink


def test_rows_of_a_sample_that_ended_do_not_wait_for_the_batch() -> None:
    before, sink = came_before_the_end(early=True)
    assert before == {0, 1, 2}
    for index, steps in enumerate((0, 3, 4, 19)):
        (chunk,) = sink.chunks[index]  # once, and in one piece
        assert chunk["a"].tensor[:, 0].tolist() == [0.0] * 3 + [float(step) for step in range(1, steps + 1)]


def test_a_model_on_the_cpu_is_left_its_cores_until_the_batch_ends() -> None:
    assert came_before_the_end(early=None)[0] == came_before_the_end(early=False)[0] == set()


def test_rows_that_a_summary_goes_with_wait_for_it() -> None:
    before, sink = came_before_the_end(early=True, shaping=RowShaping(statistics=StatisticsOptions()))
    assert before == set()
    assert all({"a", "a.mean"} <= set(*chunks) for chunks in sink.chunks.values())
