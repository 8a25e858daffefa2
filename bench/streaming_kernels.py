"""Kernels of the streaming engine on a CPU, each against its alternatives.

    python -m bench.streaming_kernels [--threads 2] [--rounds 7] [--only decode chunk ...] [--json FILE]

* "decode": attention of one new token per row, one layer. "rows" is the engine's: a call per row over its
  exact length. "groups": four calls over rows sorted by length, masked to the longest of each; their slots
  lie in that order, which no engine keeps for free. "dense": one masked call over all rows.
* "chunk": tokens of a prompt after cached ones. "mask" is the engine's: one call with a dense mask. "parts":
  cached tokens without a mask and own ones with `is_causal`, merged. "lower_right": `causal_lower_right`.
* "prefix": rows that share their first tokens. "merged" is the engine's: the prefix for all rows at once.
  "matmul": the same with matrix products instead of the fused op. "rows": each row reads its own copy.
* "packing": linear layers. "plain", "packed" (the engine's), "to_mkldnn" (`torch.utils.mkldnn`), and with
  `--freezing` a gate, SiLU and down projection frozen by inductor (needs a C++ compiler, takes minutes).
* "sampling": draws of 32 rows from 151,936 tokens. "all" adds noise to every candidate; "drawn" is the
  engine's.

Contenders take turns within a round. The figure is CPU time, the least and the median of the rounds: on a
busy machine the least is the one that others disturbed least. OpenMP's threads sleep while they wait.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from torch.utils import mkldnn

from tests.support.marks import write_result
from worker.engine.streaming.attention import (
    attend_with_total,
    chunk_attention,
    decode_attention,
    merge,
    shared_prefix_attention,
)
from worker.engine.streaming.packing import pack, probe
from worker.engine.tokens.sampling import candidates, drawn, gumbel

Contenders = Mapping[str, Callable[[], object]]


class Heads(NamedTuple):
    key_heads: int
    width: int
    group: int

    def __str__(self) -> str:
        return f"Hkv {self.key_heads} D {self.width} GQA {self.group}"


HEADS = (Heads(8, 128, 2), Heads(4, 64, 1))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SCALE = 0.1
to_mkldnn: Any = mkldnn.to_mkldnn
flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True, slots=True)
class Row:
    """Times of one setting."""

    kernel: str
    setting: str
    least: dict[str, float]  # of each contender, ms of CPU time
    median: dict[str, float]

    def __str__(self) -> str:
        times = "  ".join(f"{name} {self.least[name]:.2f} ({self.median[name]:.2f})" for name in self.least)
        return f"{self.kernel:9s} {self.setting:58s} {times}"


def measure(kernel: str, setting: str, contenders: Contenders, rounds: int) -> Row:
    """Run contenders in turn; the first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            if number:
                times[name].append((time.process_time() - start) * 1e3)
    row = Row(
        kernel,
        setting,
        {name: min(found) for name, found in times.items()},
        {name: statistics.median(found) for name, found in times.items()},
    )
    print(row, flush=True)
    return row


def settings() -> Iterator[tuple[str, torch.dtype, Heads]]:
    for name, dtype in DTYPES.items():
        for heads in HEADS:
            yield f"{name} {heads}", dtype, heads


def random(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape).to(dtype)


def longest_mask(lengths: Sequence[int], dtype: torch.dtype) -> Tensor:
    """[rows, 1, 1, longest]: -inf after each row's end."""
    ends = torch.tensor(lengths)[:, None, None, None]
    hidden = torch.arange(max(lengths)) >= ends
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)


def decode(rounds: int) -> Iterator[Row]:
    for name, dtype, heads in settings():
        for low, high in ((90, 340), (1000, 2000)):
            for rows in (16, 32, 48):
                lengths = torch.randint(low, high, (rows,)).tolist()
                yield measure("decode", f"{name}, {rows} rows of {low}-{high}",
                              decode_contenders(dtype, heads, lengths), rounds)  # fmt: skip


def decode_contenders(dtype: torch.dtype, heads: Heads, lengths: list[int]) -> Contenders:
    rows, ordered = len(lengths), sorted(lengths)
    keys, values = (random(dtype, rows, heads.key_heads, max(lengths), heads.width) for _ in "kv")
    query = random(dtype, rows, heads.key_heads, heads.group, heads.width)
    flat = query.view(rows, -1, heads.width)
    parts = []
    for first in range(0, rows, rows // 4):
        own = ordered[first : first + rows // 4]
        parts.append((slice(first, first + len(own)), max(own), longest_mask(own, dtype)))
    mask = longest_mask(lengths, dtype)

    def masked(part: slice, longest: int, hidden: Tensor) -> Tensor:
        read = keys[part, :, :longest], values[part, :, :longest]
        return scaled_dot_product_attention(query[part], *read, hidden, scale=SCALE)

    return {
        "rows": lambda: decode_attention(flat, keys, values, range(rows), lengths, scale=SCALE),
        "groups": lambda: torch.cat([masked(*part) for part in parts]),
        "dense": lambda: masked(slice(None), max(lengths), mask),
    }


def chunk(rounds: int) -> Iterator[Row]:
    for name, dtype, heads in settings():
        for start, tokens in ((0, 88), (0, 512), (900, 16), (900, 128), (900, 512), (3000, 256)):
            contenders = chunk_contenders(dtype, heads, start, tokens)
            yield measure("chunk", f"{name}, {tokens} tokens after {start}", contenders, rounds)


def chunk_contenders(dtype: torch.dtype, heads: Heads, start: int, tokens: int) -> Contenders:
    end = start + tokens
    keys, values = (random(dtype, heads.key_heads, end, heads.width) for _ in "kv")
    query = random(dtype, tokens, heads.key_heads * heads.group, heads.width)
    by_head = query.transpose(0, 1).reshape(1, heads.key_heads, -1, heads.width)

    def parts() -> Tensor:
        own = query.transpose(0, 1).view(heads.key_heads, heads.group, tokens, heads.width)
        read = (held[:, None, start:].expand(-1, heads.group, -1, -1) for held in (keys, values))
        out: Tensor
        out, total = flash(own, *read, is_causal=True, scale=SCALE)
        if start:
            before = attend_with_total(by_head, keys[None, :, :start], values[None, :, :start], scale=SCALE)
            out, total = merge(out, total, before[0].view(out.shape), before[1].view(total.shape))
        return out.reshape(-1, tokens, heads.width).transpose(0, 1)

    def lower_right() -> Tensor:
        bias: Any = causal_lower_right(tokens, end)
        return scaled_dot_product_attention(
            query.transpose(0, 1)[None], keys[None], values[None], bias, scale=SCALE, enable_gqa=True
        )

    return {
        "mask": lambda: chunk_attention(query, keys, values, start, scale=SCALE),
        "parts": parts,
        "lower_right": lower_right,
    }


def prefix(rounds: int) -> Iterator[Row]:
    for name, dtype, heads in settings():
        for tokens in (64, 200, 500, 1000, 2000):
            for rows in (4, 16, 32):
                contenders = prefix_contenders(dtype, heads, tokens, rows)
                yield measure("prefix", f"{name}, {rows} rows, prefix {tokens}", contenders, rounds)


def prefix_contenders(dtype: torch.dtype, heads: Heads, tokens: int, rows: int) -> Contenders:
    """Rows of 60 to 260 tokens after the prefix."""
    tails = torch.randint(60, 260, (rows,)).tolist()
    keys, values = (random(dtype, rows, heads.key_heads, tokens + 260, heads.width) for _ in "kv")
    query = random(dtype, rows, heads.key_heads * heads.group, heads.width)
    keys[1:, :, :tokens], values[1:, :, :tokens] = keys[:1, :, :tokens], values[:1, :, :tokens]
    shared = keys[0, :, :tokens].contiguous(), values[0, :, :tokens].contiguous()
    tail_keys, tail_values = keys[:, :, tokens:], values[:, :, tokens:]
    slots = range(rows)

    def matmul() -> Tensor:
        by_head = query.view(rows, heads.key_heads, heads.group, heads.width)
        together = by_head.transpose(0, 1).reshape(heads.key_heads, -1, heads.width)
        scores = (together @ shared[0].transpose(1, 2)).float() * SCALE
        total = scores.logsumexp(-1)
        out = torch.exp(scores - total[..., None]).to(dtype) @ shared[1]
        ends = [
            attend_with_total(row, tail_keys[i : i + 1, :, :n], tail_values[i : i + 1, :, :n], scale=SCALE)
            for i, (row, n) in enumerate(zip(by_head[:, None], tails, strict=True))
        ]
        out = out.view(heads.key_heads, rows, heads.group, -1).transpose(0, 1)
        total = total.view(heads.key_heads, rows, heads.group).transpose(0, 1)
        return merge(out, total, torch.cat([o for o, _ in ends]), torch.cat([t for _, t in ends]))[0]

    return {
        "merged": lambda: shared_prefix_attention(
            query, *shared, tail_keys, tail_values, slots, tails, scale=SCALE
        ),
        "matmul": matmul,
        "rows": lambda: decode_attention(
            query, keys, values, slots, [tokens + n for n in tails], scale=SCALE
        ),
    }


SHAPES = ((3072, 1024), (1024, 3072), (1024, 1024), (1536, 512), (512, 512), (768, 2048), (151_936, 1024))


def packing(rounds: int) -> Iterator[Row]:
    for name, dtype in DTYPES.items():
        for outputs, inputs in SHAPES:
            plain = nn.Sequential(nn.Linear(inputs, outputs, bias=False).to(dtype))
            held = nn.Sequential(nn.Linear(inputs, outputs, bias=False).to(dtype))
            reason = probe(held)
            layers: dict[str, Any] = {"plain": plain}
            if reason is None:
                start = time.process_time()
                pack(held)
                took = f"packed in {(time.process_time() - start) * 1e3:.0f} ms"
                layers |= {
                    "packed": held,
                    "to_mkldnn": to_mkldnn(nn.Sequential(nn.Linear(inputs, outputs, bias=False))),
                }
            else:
                took = "not packed"
                print(f"{name} {outputs}x{inputs} is not packed: {reason}")
            for tokens in (1, 2, 16, 32, 48, 512):
                given = random(dtype, tokens, inputs)
                runs = {key: partial(layer, given) for key, layer in layers.items()}
                yield measure("packing", f"{name} {outputs}x{inputs}, {tokens} tokens, {took}", runs, rounds)


class GatedUnit(nn.Module):
    """A part of a model that inductor can fuse."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(1024, 3072, bias=False).to(dtype)
        self.down = nn.Linear(3072, 1024, bias=False).to(dtype)

    def forward(self, given: Tensor) -> Tensor:
        out: Tensor = self.down(nn.functional.silu(self.up(given)))
        return out


def freezing(rounds: int) -> Iterator[Row]:
    import torch._inductor.config as inductor

    inductor.freezing = True
    for name, dtype in DTYPES.items():
        plain, held = GatedUnit(dtype).eval(), GatedUnit(dtype).eval()
        start = time.perf_counter()
        frozen = torch.compile(plain, dynamic=True)
        frozen(random(dtype, 32, 1024))
        took = f"compiled in {time.perf_counter() - start:.0f} s"
        layers: dict[str, Any] = {"plain": plain, "frozen": frozen}
        if probe(held) is None:
            pack(held)
            layers["packed"] = held
        for tokens in (2, 16, 32, 48, 512):
            given = random(dtype, tokens, 1024)
            runs = {key: partial(layer, given) for key, layer in layers.items()}
            yield measure("freezing", f"{name}, {tokens} tokens, {took}", runs, rounds)


WAYS = ((0.8, None, 1.0), (0.3, None, 1.0), (0.8, 50, 1.0), (0.8, None, 0.9))


def sampling(rounds: int) -> Iterator[Row]:
    flat = torch.randn(32, 151_936)
    peaked = flat * 3
    peaked[:, :3] += 25
    for shape, logits in (("flat", flat), ("peaked", peaked)):
        yield measure("sampling", f"greedy, {shape}", {"argmax": partial(logits.argmax, -1)}, rounds)
        for way in WAYS:
            setting = f"temperature {way[0]} top_k {way[1]} top_p {way[2]}, {shape}"
            yield measure("sampling", setting, sampling_contenders(logits, *way), rounds)


def sampling_contenders(logits: Tensor, temperature: float, top_k: int | None, top_p: float) -> Contenders:
    rows = len(logits)
    seeds, steps = torch.arange(rows), torch.arange(rows) * 7
    choose = partial(candidates, logits, temperature=temperature, top_k=top_k, top_p=top_p)
    values, index = choose()
    where = torch.arange(logits.shape[-1]).expand(rows, -1) if index is None else index

    def draw_all() -> list[Tensor]:
        return [
            gumbel(seeds[i : i + 1], steps[i : i + 1], where[i : i + 1]).add_(values[i]).argmax()
            for i in range(rows)
        ]

    return {"candidates": choose, "all": draw_all, "drawn": partial(drawn, values, index, seeds, steps)}


PARTS = {f.__name__: f for f in (decode, chunk, prefix, packing, sampling)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--freezing", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    found: list[Row] = []
    with torch.inference_mode():
        for name in asked.only:
            found += PARTS[name](asked.rounds)
    if asked.freezing:
        with torch.no_grad():
            found += freezing(asked.rounds)
    result = {
        "threads": asked.threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "unit": "ms of CPU time, least and median of the rounds",
        "rows": [asdict(row) for row in found],
    }
    write_result(asked.json, result)


if __name__ == "__main__":
    main()
