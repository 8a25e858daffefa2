"""Room on a card, by a model's config: `python -m worker.engine.estimate`, an order as JSON on stdin.

The command line starts it in the environment of the service, since it needs torch. It loads no weights and
uses no GPU.
"""

import json
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from transformers.utils import logging

from actograph.contract import hooks
from actograph.contract.errors import ActographError, InvalidRequest, UnknownHook
from actograph.contract.job_specs import captured_hooks
from actograph.contract.models import HookInfo, ModelStructure, parse_served
from actograph.contract.operations import CardEstimate, LengthFit
from actograph.contract.specs import CaptureSpec
from actograph.settings import Settings
from evals import plans
from worker.engine.messages import RunOptions
from worker.engine.model.from_config import ConfigSizes, sizes_of

#: lengths that are tried, up to the model's context, which is tried as well
_LENGTHS = (1024, 4096, 16_384, 65_536, 262_144)
_INDICES = "int64"


def estimate(order: Mapping[str, Any]) -> CardEstimate:
    """Plan a model on cards as a worker would.

    Args:
        order: model, card_bytes, tensor_parallel, slots (0: the default), dtype, revision, capture (a spec or
            None), tokens (of a sample, or None).

    Raises:
        ModelRefused: sizes cannot be derived from the config.
        UnknownHook: a point's size is not known before the model is loaded.
    """
    served, ranks = parse_served(order["model"]), order["tensor_parallel"]
    sizes = sizes_of(served.source, dtype=order["dtype"], revision=order["revision"], ranks=ranks)
    structure = _structure(served.name, sizes)
    capture = None if order["capture"] is None else CaptureSpec.model_validate(order["capture"])
    names = [] if capture is None else _hooks(capture, structure)
    slots = plans.most_slots(on_gpu=True, most=order["slots"])
    free = order["card_bytes"] - sizes.weights_bytes
    pass_bytes = _pass_bytes(sizes, slots, free)
    host = Settings().host_buffer_bytes
    total = plans.run_bytes(free, pass_bytes)
    room = plans.run_memory(
        total,
        token_bytes=sizes.token_bytes,
        slots=slots,
        context=sizes.context_length,
        row_bytes=host,
        on_gpu=True,
    )

    def need(tokens: int) -> plans.SampleNeed:
        return plans.sample_need(
            structure,
            names,
            capture or CaptureSpec(),
            token_bytes=sizes.token_bytes,
            prompt_tokens=tokens,
            generated_tokens=0,
        )

    lengths = sorted({*(n for n in _LENGTHS if n < sizes.context_length), sizes.context_length})
    if order["tokens"] is not None:
        lengths = sorted({*lengths, min(order["tokens"], sizes.context_length)})
    short = need(plans.BLOCK_ROWS)
    fitting = plans.samples_that_fit(room, short, slots) if room.tokens >= plans.BLOCK_ROWS else 0
    return CardEstimate(
        model=served.name,
        architecture=sizes.architecture,
        dtype=sizes.dtype,
        tensor_parallel=ranks,
        num_parameters=sizes.num_parameters,
        card_bytes=order["card_bytes"],
        weights_bytes=sizes.weights_bytes,
        pass_bytes=pass_bytes,
        spare_bytes=plans.GPU_SPARE,
        run_bytes=total,
        kv_bytes_per_token=sizes.token_bytes,
        row_bytes_per_token=plans.bytes_per_token(structure, names, *_stored(capture)),
        block_bytes=short.held.on_device,
        host_buffer_bytes=host if names else 0,
        slots=fitting,
        longest_tokens=min(room.tokens, sizes.context_length) if fitting else 0,
        fits=fitting > 0,
        lengths=[
            LengthFit(tokens=tokens, slots=plans.samples_that_fit(room, need(tokens), slots))
            for tokens in lengths
        ],
        assumptions=_assumptions(ranks, names),
    )


def _pass_bytes(sizes: ConfigSizes, slots: int, free: int) -> int:
    """The larger one of a pass of single tokens and of a pass of prompts, as a load would size it."""
    rows = min(slots + RunOptions().urgent, plans.STEP_TOKENS)
    step = sizes.forward_bytes + plans.STEP_TOKENS * sizes.row_bytes
    left = max(0, free - plans.GPU_SPARE)
    tokens = plans.prompt_tokens(left, left // 2 // sizes.token_bytes, step)
    return max(plans.choice_bytes(rows, sizes.vocab_size), step * tokens // plans.STEP_TOKENS)


def _stored(capture: CaptureSpec | None) -> tuple[Any, Any]:
    return ("model", None) if capture is None else (capture.dtype, capture.features)


def _hooks(capture: CaptureSpec, structure: ModelStructure) -> list[str]:
    for field in ("saes", "readouts"):
        if getattr(capture, field):
            raise InvalidRequest(
                "the sizes of stored SAEs and vectors are known to the service alone; ask it, with POST "
                "/v1/estimate",
                param=f"capture.{field}",
            )
    try:
        return captured_hooks(capture, structure)
    except UnknownHook as error:
        raise UnknownHook(
            f"{error.message} (by the config alone the standard points have known widths; others need a "
            "loaded model)",
            param=error.param,
        ) from None


def _structure(name: str, sizes: ConfigSizes) -> ModelStructure:
    """The standard points of a model with these sizes; which of them it has is verified by a load."""
    widths: dict[str, int | None] = dict.fromkeys(hooks.POINTS, sizes.hidden_size)
    widths["logits"] = sizes.vocab_size
    of_experts = {
        "router_logits": sizes.num_experts,
        "expert_indices": sizes.experts_per_token,
        "expert_weights": sizes.experts_per_token,
    }
    of_heads = {"q": sizes.heads_width, "k": sizes.keys_width, "v": sizes.keys_width, "z": sizes.heads_width}
    found: dict[str, HookInfo] = {}
    for point in hooks.POINTS:
        width = (widths | of_experts | of_heads)[point]
        if width is None:
            continue
        names = [f"{point}.{i}" for i in range(sizes.num_layers)] if point in hooks.LAYER_POINTS else [point]
        for one in names:
            found[one] = HookInfo(
                location=f"{one}.output",
                width=width,
                dtype=_INDICES if point == "expert_indices" else sizes.dtype,
                tail_only=point == "logits",
            )
    return ModelStructure(
        model=name,
        architecture=sizes.architecture,
        num_layers=sizes.num_layers,
        hidden_size=sizes.hidden_size,
        vocab_size=sizes.vocab_size,
        context_length=sizes.context_length,
        dtype=sizes.dtype,
        device="cuda:0",
        num_parameters=sizes.num_parameters,
        chat_template=False,
        eos_token_ids=[],
        hooks=found,
        module_locations=[info.location for info in found.values()],
        num_experts=sizes.num_experts,
        experts_per_token=sizes.experts_per_token,
    )


def _assumptions(ranks: int, names: list[str]) -> list[str]:
    made = [
        "weights, keys and values are exact; the pass is estimated, and a load measures it",
        "nothing else uses the card; the driver's own memory on it is not counted",
    ]
    if ranks > 1:
        made.append(f"{ranks} cards share the model; the sizes are of the first one, which has the most")
    if names:
        made.append("that the model has these hook points is verified when it is loaded")
    return made


def main() -> int:
    """Answer an order with the estimate, or with an error and status 1."""
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    code = 0
    try:
        answer = estimate(json.load(sys.stdin)).model_dump_json()
    except ActographError as error:
        answer, code = json.dumps({"error": error.message}), 1
    sys.stdout.write(f"{answer}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
