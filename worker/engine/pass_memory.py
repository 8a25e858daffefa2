"""Peak memory of a pass, measured on the device by a short run when a model is loaded.

vLLM sizes its cache in the same way (https://docs.vllm.ai/en/latest/configuration/conserving_memory/).
"""

from actograph.contract.specs import SamplingSpec
from worker.engine.capture.budget import Budget
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

    Args:
        slots: requests of the largest decode pass.
        longest: tokens of the long prompt.

    Raises:
        Exception: a pass fails, perhaps since memory runs out.
    """
    vocabulary = int(forward.hooks.model.text_config.vocab_size)

    def ask(key: int, tokens: int, *, max_tokens: int = 0, score: bool = False) -> Request:
        return Request(
            key=str(key),
            prompt_ids=tuple((17 * key + 7 * i) % vocabulary for i in range(tokens)),
            seed=key,
            sampling=_COSTLIEST,
            max_tokens=max_tokens,
            top_logprobs=_TOP_LOGPROBS,
            score_prompt=score,
        )

    requests = [ask(i, _SHORT_PROMPT, max_tokens=_CHOSEN) for i in range(slots)]
    run = ListedRequests([*requests, ask(slots, _SCORED_PROMPT, score=True), ask(slots + 1, longest)])
    loop = Loop(forward, Budget(0), source=run, control=run, results=run, most=slots, urgent=0)
    return peak_over(forward.hooks.model.devices, loop.run)
