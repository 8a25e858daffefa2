"""Which forward runs a model, and the memory of a run.

Packed passes take several requests at once. A model that they do not suit runs under nnsight, one request per
pass; `reason` says why.
"""

import logging
from functools import cached_property
from typing import NamedTuple

import torch

from actograph.contract.errors import ModelRefused
from evals.plans import (
    BLOCK_ROWS,
    GPU_SPARE,
    STEP_TOKENS,
    RunMemory,
    most_slots,
    prompt_tokens,
    run_bytes,
    run_memory,
)
from worker.engine.attention_masks import UnknownAttention
from worker.engine.capture.budget import Budget, DeviceMemory
from worker.engine.capture.pool import Pool
from worker.engine.edit_tables import EditTables, table_bytes
from worker.engine.locations import ModelHooks
from worker.engine.messages import RunOptions
from worker.engine.model import group
from worker.engine.model.device_errors import is_out_of_memory
from worker.engine.model.kv_cache import kv_bytes_per_token
from worker.engine.model.memory import available_bytes, spread_bytes
from worker.engine.packed import flex
from worker.engine.packed.forward import REPEATABLE_ROWS, PackedForward
from worker.engine.packed.norms import FusedNorms
from worker.engine.packed.registration import ONE_BY_ONE
from worker.engine.packed.verification import texts_for, verify
from worker.engine.pass_hooks import PassHooks
from worker.engine.pass_memory import LONGEST_PROMPT, least_tokens, measure, measure_prompts
from worker.engine.stream.forward import Forward
from worker.engine.stream.slots import blocks_of
from worker.engine.traced.forward import TracedForward

log = logging.getLogger(__name__)

#: bytes of a GPU for blocks of rows and sums, at most: more than 256 requests take that sum up every layer of
#: a model of 8B parameters at two points; rows that are kept are bounded by the host's memory besides
_MOST_FOR_BLOCKS = 32 << 30


class Opened(NamedTuple):
    """What a run works with.

    Attributes:
        rows: budget of its rows on the host; on a CPU the forward's too.
        at_hooks: of the model, with its blocks of rows; None: the run has its own.
    """

    forward: Forward
    rows: Budget
    at_hooks: PassHooks | None = None


class _Packed(NamedTuple):
    """How packed passes of a model run.

    Attributes:
        refusal: why they do not; None if they do.
        ways: in which their layers attend.
        norms: whether their norms are fused.
        varies: whether they read variants of prompts.
    """

    refusal: str | None
    ways: frozenset[str] = frozenset()
    norms: bool = False
    varies: bool = False


class _Kept(NamedTuple):
    """What serves one run after the other.

    Attributes:
        key: of the runs that it serves.
    """

    key: tuple[int, bool, bool]
    forward: PackedForward
    at_hooks: PassHooks


class Forwards:
    """Opens the forward of each run of a model.

    Attributes:
        pass_bytes: measured peak of a packed pass on a GPU; None: not measured.
        prompt_tokens: of a packed pass of prompts on a GPU, as its memory allows.
    """

    def __init__(self, hooks: ModelHooks) -> None:
        self._hooks = hooks
        self.pass_bytes: int | None = None
        self.prompt_tokens = STEP_TOKENS
        self._kept: _Kept | None = None

    @property
    def reason(self) -> str | None:
        """Why passes are not packed; None if they are. The first call verifies them."""
        return self._verified.refusal

    @property
    def attends_together(self) -> bool:
        """Whether one call attends for all requests of a pass, in every layer."""
        return bool(self._verified.ways) and ONE_BY_ONE not in self._verified.ways

    def varies(self, options: RunOptions) -> bool:
        """Whether a run reads variants of prompts."""
        return (
            self.reason is None
            and self._verified.varies
            and group.size() == 1
            and not (options.traced or options.repeatable)
        )

    @cached_property
    def _verified(self) -> _Packed:
        """How packed passes run: the fastest way that gives the numbers of the model's own forward."""
        name, problem = self._hooks.model.name, ""
        tokens = texts_for(self._hooks.model).tokens
        for fused, norms in self._ways():
            budget = Budget(2 * tokens * max(1, kv_bytes_per_token(self._hooks.model)))
            try:
                forward = PackedForward(self._hooks, budget, tokens=tokens, fused=fused, norms=norms)
                verify(forward)
            except UnknownAttention as error:
                problem = str(error)
                continue
            if self.on_gpu and not fused:
                log.warning("%s attends request by request, which is slower: %s", name, problem)
            if self.on_gpu and norms is None and self._fused_norms.count:
                log.warning("%s computes its norms in several kernels, which is slower: %s", name, problem)
            ways = ", ".join(sorted(forward.ways))
            log.info("%s: attention is %s (torch %s)", name, ways, torch.__version__)
            if norms is not None:
                log.info("%s: each of %d norms is one kernel", name, norms.count)
            return _Packed(None, frozenset(forward.ways), norms is not None, forward.varies)
        log.info("%s runs traced, one request per pass: %s", name, problem)
        return _Packed(problem)

    def _ways(self) -> list[tuple[bool, FusedNorms | None]]:
        """Ways of packed passes, the fastest first: whether one call attends for all requests, and norms."""
        if not self.on_gpu:
            return [(False, None)]
        norms = [self._fused_norms, None] if self._fused_norms.count else [None]
        return [(fused, some) for fused in (True, False) for some in norms]

    @cached_property
    def _fused_norms(self) -> FusedNorms:
        return FusedNorms(self._hooks.model.hf)

    @property
    def _norms(self) -> FusedNorms | None:
        return self._fused_norms if self._verified.norms else None

    @property
    def _fused(self) -> bool:
        """Whether one call attends for all requests in some layers."""
        return bool(self._verified.ways - {ONE_BY_ONE})

    @property
    def on_gpu(self) -> bool:
        return self._hooks.model.device.type == "cuda"

    @property
    def _one_gpu(self) -> bool:
        return self.on_gpu and len(set(self._hooks.model.layer_devices)) == 1 and group.size() == 1

    def slots(self, options: RunOptions) -> int:
        """Requests at once."""
        return most_slots(on_gpu=self.on_gpu, most=options.slots)

    def plan(self, usual: RunOptions) -> None:
        """Measure a pass if the model is on a GPU, and check that runs have memory.

        Args:
            usual: options of most runs.

        Raises:
            ModelRefused: the device has no memory for a run.
        """
        name, slots = self._hooks.model.name, self.slots(usual) + usual.urgent
        if self.on_gpu and self.reason is None:
            try:
                peak = self._measured(slots, usual)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                raise ModelRefused(
                    f"{name}: a pass of {slots} requests does not fit into the memory of "
                    f"{self._hooks.model.device} beside the weights ({error}); set fewer ACTOGRAPH_SLOTS, "
                    "or use a smaller dtype or a larger device"
                ) from error
            log.info(
                "%s: a pass of %d requests or %d tokens of prompts takes %s bytes",
                name,
                slots,
                self.prompt_tokens,
                f"{peak:,}",
            )
        room = self._memory(usual)
        if room.tokens < BLOCK_ROWS:
            raise ModelRefused(
                f"{name}: {room.total:,} bytes are left for keys, values and rows, and a token takes "
                f"{self._token_bytes:,}; set fewer ACTOGRAPH_SLOTS, or use a smaller dtype or a larger device"
            )

    def _measured(self, slots: int, usual: RunOptions) -> int:
        """Most bytes that a pass takes; sets `pass_bytes` and `prompt_tokens`.

        Raises:
            Exception: a pass fails, perhaps since memory runs out.
        """
        longest = min(self._hooks.model.context_length, LONGEST_PROMPT)
        least = least_tokens(slots)
        # half of the memory is left to the passes
        room = self._free(GPU_SPARE) // 2 // self._token_bytes
        tokens = min(longest + least, room)
        if tokens < least + BLOCK_ROWS:
            raise MemoryError(f"{self._free(0):,} bytes are free beside its weights")
        peak = decoding = self._most(measure(self._to_measure(tokens, slots), slots, tokens - least))
        if self.attends_together and not usual.repeatable and room >= STEP_TOKENS:
            prompts = self._most(measure_prompts(self._to_measure(STEP_TOKENS), STEP_TOKENS))
            tokens = self.prompt_tokens = prompt_tokens(self._free(GPU_SPARE), room, prompts)
            peak = max(peak, self._most(measure_prompts(self._to_measure(tokens), tokens)))
        # CUDA graphs keep the memory of their passes
        replays = usual.cuda_graphs and self._one_gpu and self.attends_together
        self.pass_bytes = peak + decoding + table_bytes(self._hooks, slots) if replays else peak
        return peak

    def _to_measure(self, tokens: int, slots: int = 0) -> PackedForward:
        slots = slots or -(-tokens // self._hooks.model.context_length)
        budget = Budget(tokens * self._token_bytes)
        return PackedForward(
            self._hooks, budget, tokens=tokens, fused=self._fused, slots=slots, norms=self._norms
        )

    def _most(self, size: int) -> int:
        """The most of all ranks' numbers."""
        return -group.least(-size)

    def step_tokens(self, options: RunOptions) -> int:
        """Tokens of a pass of a run; on a GPU, of prompts."""
        return STEP_TOKENS if options.traced or options.repeatable else self.prompt_tokens

    def keep(self, usual: RunOptions) -> None:
        """On a GPU, take the memory of most runs now: the arena, and the graphs of passes without captures.

        Raises:
            MemoryError: there is no memory for a single request.
        """
        if self.on_gpu and self.reason is None:
            forward, _, at_hooks = self.open(usual)
            assert at_hooks is not None
            with torch.inference_mode():
                forward.prepare(at_hooks)
            forward.close()

    def release(self) -> None:
        """Give back the memory that is kept between runs."""
        if self._kept is not None:
            self._kept.forward.release()
            self._kept = None

    def open(self, options: RunOptions) -> Opened:
        """What a run works with.

        On a GPU packed runs with equal options have one arena, one pool of blocks, and graphs of these.

        Raises:
            MemoryError: there is no memory for a single request.
        """
        slots, kept = self.slots(options) + options.urgent, self._kept
        key = (slots, options.cuda_graphs, options.repeatable)
        if (
            kept is not None
            and kept.key == key
            and not options.traced
            and kept.forward.arena.is_empty
            and kept.at_hooks.pool.idle
        ):
            rows = kept.at_hooks.pool.host
            rows.total = options.row_bytes
            return Opened(kept.forward, rows, kept.at_hooks)
        self.release()
        room = self._memory(options)
        rows = Budget(room.for_rows)
        if self.on_gpu:
            device = Budget(room.total)
        else:
            device = rows = Budget(room.for_keys + room.for_rows)
        if self.reason is not None or options.traced:
            token_bytes = self._token_bytes
            traced = TracedForward(
                self._hooks, device, tokens=room.tokens, token_bytes=token_bytes, slots=slots
            )
            return Opened(traced, rows)
        forward = PackedForward(
            self._hooks,
            device,
            tokens=room.tokens,
            fused=self._fused,
            block=flex.BLOCK if flex.NAME in self._verified.ways else 1,
            slots=slots,
            replays=options.cuda_graphs
            and self._one_gpu
            and self.attends_together
            and not options.repeatable,
            rows=REPEATABLE_ROWS if options.repeatable else 0,
            norms=self._norms,
            varies=self.varies(options),
        )
        if not self.on_gpu:
            return Opened(forward, rows)
        blocks = blocks_of(slots, self.step_tokens(options))
        pool = Pool(self._hooks.model.device, self._for_blocks(device.free), rows, blocks=blocks)
        at_hooks = PassHooks(self._hooks, pool)
        if forward.decoding is not None:
            at_hooks = PassHooks(self._hooks, pool, padded=slots, tables=EditTables(self._hooks, slots))
        self._kept = _Kept(key, forward, at_hooks)
        return Opened(forward, rows, self._kept.at_hooks)

    def _for_blocks(self, size: int) -> DeviceMemory:
        """Memory for blocks of rows, of which the devices have `size` bytes; the first one's share."""
        model = self._hooks.model
        layers = model.layer_devices
        share = size * layers.count(model.device) // len(layers)
        return DeviceMemory(model.device, min(_MOST_FOR_BLOCKS, share))

    @property
    def _token_bytes(self) -> int:
        return max(1, kv_bytes_per_token(self._hooks.model))

    def _free(self, spare: int) -> int:
        """Bytes of the devices, less `spare` of each; of several ranks the least."""
        layers = self._hooks.model.layer_devices
        return group.least(spread_bytes(layers, lambda one: max(0, available_bytes(one) - spare)))

    def _memory(self, options: RunOptions) -> RunMemory:
        """The memory of a run, if it began now."""
        pass_bytes = None if options.traced else self.pass_bytes
        layers = self._hooks.model.layer_devices
        return run_memory(
            # of several ranks the least: all have an arena of the same length
            group.least(spread_bytes(layers, lambda one: run_bytes(available_bytes(one), pass_bytes))),
            token_bytes=self._token_bytes,
            slots=self.slots(options),
            context=self._hooks.model.context_length,
            row_bytes=options.row_bytes,
            on_gpu=self.on_gpu,
        )
