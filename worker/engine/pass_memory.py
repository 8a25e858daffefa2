"""Peak memory of a pass, measured on the device by a short run when a model is loaded.

vLLM sizes its cache in the same way (https://docs.vllm.ai/en/latest/configuration/conserving_memory/).
"""

from collections.abc import Sequence
from typing import Any

from actograph.contract.specs import SamplingSpec
from evals.plans import STEP_TOKENS, item_bytes
from worker.engine.capture.budget import Budget
from worker.engine.locations import ModelHooks
from worker.engine.messages import Request
from worker.engine.model.memory import peak_over
from worker.engine.stream.forward import Forward
from worker.engine.stream.listed_requests import ListedRequests
from worker.engine.stream.loop import Loop

#: tokens of the long prompt of the run, at most: attention takes hardly more memory for more of them
LONGEST_PROMPT = 8192
#: tokens of the prompt that is scored
_SCORED_PROMPT = 64
#: tokens of the prompts of requests that fill the slots, and tokens that each chooses
_SHORT_PROMPT, _CHOSEN = 2, 3
#: sampling whose choice of tokens takes the most memory: nearly all tokens are sorted
_COSTLIEST = SamplingSpec(
    temperature=1.0,
    top_p=1 - 1e-6,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    repetition_penalty=1.1,
    max_tokens=_CHOSEN,
    ignore_eos=True,
)
_TOP_LOGPROBS = 20


def least_tokens(slots: int) -> int:
    """Tokens of the requests of `measure` other than the long prompt."""
    return slots * (_SHORT_PROMPT + _CHOSEN) + _SCORED_PROMPT


def measure(forward: Forward, slots: int, longest: int) -> int:
    """Most bytes of a GPU that a pass takes beside the weights, keys and values.

    Prompts are read `STEP_TOKENS` at a time.

    Args:
        slots: requests of the largest decode pass.
        longest: tokens of the long prompt.

    Raises:
        Exception: a pass fails, perhaps since memory runs out.
    """

    def chosen(key: int) -> Request:
        return _ask(forward, key, _SHORT_PROMPT, sampling=_COSTLIEST, max_tokens=_CHOSEN)

    scored = _ask(forward, slots, _SCORED_PROMPT, score_prompt=True)
    requests = [*map(chosen, range(slots)), scored, _ask(forward, slots + 1, longest)]
    return _peak(forward, requests, slots, STEP_TOKENS)


def measure_prompts(forward: Forward, tokens: int) -> int:
    """The same of a pass of prompts of so many tokens, whose rows leave at one point of the model at a time.

    Raises:
        Exception: see `measure`.
    """
    most = min(tokens, forward.hooks.model.context_length)
    lengths = [min(most, tokens - start) for start in range(0, tokens, most)]
    requests = [_ask(forward, key, length) for key, length in enumerate(lengths)]
    return _peak(forward, requests, len(requests), tokens) + tokens * _row_bytes(forward.hooks)


def _ask(forward: Forward, key: int, tokens: int, **more: Any) -> Request:
    vocabulary = int(forward.hooks.model.text_config.vocab_size)
    ids = tuple((17 * key + 7 * i) % vocabulary for i in range(tokens))
    return Request(
        key=str(key), prompt_ids=ids, seed=key, **({"max_tokens": 0, "top_logprobs": _TOP_LOGPROBS} | more)
    )


def _peak(forward: Forward, requests: Sequence[Request], most: int, step_tokens: int) -> int:
    run = ListedRequests(requests)
    loop = Loop(
        forward,
        Budget(0),
        source=run,
        control=run,
        results=run,
        most=most,
        urgent=0,
        step_tokens=step_tokens,
        apart=True,
    )
    return peak_over(forward.hooks.model.devices, loop.run)


def _row_bytes(hooks: ModelHooks) -> int:
    """Bytes of a row of the widest point: the rows that are kept, and these in float32."""
    points = [info for info in hooks.structure.module_tensors.values() if not info.tail_only]
    return max((info.width * (item_bytes(info.dtype) + 4) for info in points), default=0)
