"""Proof at load that the numbers of a request have the same bits whatever runs beside it.

Passes then have a fixed number of rows, prompts are read in pieces that end at fixed numbers, and attention
reads a request's own range alone. Whether the libraries below compute a row in the same way at every place of
a pass is shown by running one request alone, and again among others (batch invariance: He et al. 2025,
"Defeating Nondeterminism in LLM Inference",
https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/).
"""

from collections.abc import Mapping, Sequence

from actograph.contract.errors import ModelRefused
from actograph.contract.specs import SamplingSpec
from worker.engine.engine import Engine
from worker.engine.messages import Capture, Generation, Request, Rows, RunOptions
from worker.engine.stream.listed_requests import ListedRequests

#: tokens of the prompts: pieces of every kind, and shared beginnings
_PROMPTS = (75, 1, 9, 64, 130, 75, 33, 2)
#: tokens that each request generates
_GENERATED = 4
#: places of the request under test among the others
_PLACES = (0, 6)


class _KeptBits(ListedRequests):
    """A run that keeps the bits of tokens and rows."""

    def __init__(self, requests: Sequence[Request]) -> None:
        super().__init__(requests)
        #: by request and hook
        self.bits: dict[tuple[str, str], list[bytes]] = {}

    def done(self, generation: Generation) -> None:
        super().done(generation)
        self.bits.setdefault((generation.key, "tokens"), []).append(repr(generation.generated_ids).encode())

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        """Keep rows, whose memory is the engine's again afterwards."""
        for hook, chunk in rows.items():
            self.bits.setdefault((key, hook), []).extend(piece.tobytes() for piece in chunk.pieces)


def prove(engine: Engine, usual: RunOptions) -> None:
    """Run a request alone and among others, and compare the bits of its tokens and rows.

    Raises:
        ModelRefused: they differ; the message says where.
    """
    vocabulary, context = engine.structure.vocab_size, engine.structure.context_length
    layers = sorted({0, engine.structure.num_layers // 2, engine.structure.num_layers - 1})
    hooks = [hook for hook in engine.structure.hooks if hook.rpartition(".")[2] in map(str, layers)]
    hooks += [hook for hook in ("final_norm", "logits") if hook in engine.structure.hooks]
    lengths = [min(tokens, context - _GENERATED) for tokens in _PROMPTS]

    def ask(place: int) -> Request:
        # the sixth is like the first, so that they share a prefix
        number = 0 if place == 5 else place
        return Request(
            key=str(place),
            prompt_ids=tuple((17 * number + 7 * i * i + 3) % vocabulary for i in range(lengths[place])),
            seed=place,
            sampling=SamplingSpec(max_tokens=_GENERATED, ignore_eos=True),
            capture=None if number else Capture(hooks=tuple(hooks)),
        )

    tested = ask(0)
    others = [ask(place) for place in range(1, len(_PROMPTS))]
    alone = _bits(engine, [tested], usual, tested.key)
    for place in _PLACES:
        among = _bits(engine, [*others[:place], tested, *others[place:]], usual, tested.key)
        for name, bits in alone.items():
            if among[name] != bits:
                raise ModelRefused(
                    f"{engine.structure.model}: its numbers depend on what runs beside a request "
                    f"({name} of one at place {place} among others has other bits than "
                    "alone), so runs cannot repeat; leave ACTOGRAPH_REPEATABLE out, or use another device or "
                    "dtype"
                )


def _bits(engine: Engine, requests: Sequence[Request], usual: RunOptions, of: str) -> dict[str, bytes]:
    """Bits of the tokens and rows of one of these requests, by hook."""
    run = _KeptBits(requests)
    engine.run(source=run, control=run, results=run, sink=run, options=usual)
    return {hook: b"".join(parts) for (key, hook), parts in run.bits.items() if key == of}
