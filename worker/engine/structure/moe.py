"""Find and verify the router of a mixture-of-experts layer.

A router is recognised by its tensors, not by a name. Below the layer's MLP, one module returns two tensors
with one row per token, weights and ids (the chosen experts), and another module takes exactly those. The
router's scores for all experts are the router logits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from worker.engine.locations import place_of
from worker.engine.structure.comparison import close
from worker.engine.structure.dry_forward import DryForward, Visit

POINTS = ("router_logits", "expert_indices", "expert_weights")
# tokens of the dry forward that run through the router once more, alone
_AGAIN = 5


@dataclass
class Router:
    """One layer's router: its points, their proofs, and the reasons for missing points."""

    num_experts: int
    experts_per_token: int
    locations: dict[str, str]  # point -> location
    proofs: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # point -> reason


@dataclass(frozen=True)
class _RouterOutputs:
    """The three tensors that one module returned."""

    path: str
    logits: Visit
    indices: Visit
    weights: Visit

    @property
    def num_experts(self) -> int:
        return self.logits.width


def find_router(
    module: torch.nn.Module, path: str, mlp_input: Visit | None, forward: DryForward
) -> Router | str | None:
    """The router below an MLP; None if no module looks like one; a reason if verification fails.

    Args:
        module: the MLP.
        path: of the MLP in the model.
        mlp_input: the MLP's input.
    """
    by_path: dict[str, list[Visit]] = {}
    for visit in forward.visits:
        place = place_of(visit.location)
        if place.path.startswith(f"{path}.") and place.side == "output":
            by_path.setdefault(place.path, []).append(visit)
    choices = [choice for name, visits in by_path.items() if (choice := _choice(name, visits)) is not None]
    if not choices:
        return None
    if len(choices) > 1:
        return f"several modules look like this layer's router: {', '.join(c.path for c in choices)}"
    router = module.get_submodule(choices[0].path.removeprefix(f"{path}."))
    return _proved(choices[0], router, mlp_input, forward)


def _choice(path: str, visits: list[Visit]) -> _RouterOutputs | None:
    """The visits as a router's output: ids [.., k], weights of the same shape, logits [.., E >= k]."""
    flat = [v for v in visits if v.value.ndim == 3]
    indices = [v for v in flat if not v.value.is_floating_point()]
    if len(indices) != 1:
        return None
    k = indices[0].width
    floats = [v for v in flat if v.value.is_floating_point() and v.width >= k]
    if len(floats) != 2:
        return None
    # the wider one has a number per expert; if all experts are chosen, the first one does
    logits, weights = sorted(floats, key=lambda v: -v.width)
    if weights.width != k:
        return None
    return _RouterOutputs(path, logits, indices[0], weights)


def _proved(
    choice: _RouterOutputs, module: torch.nn.Module, mlp_input: Visit | None, forward: DryForward
) -> Router | str:
    logits, indices, weights = choice.logits, choice.indices, choice.weights
    ids, experts = indices.value, choice.num_experts
    if int(ids.min()) < 0 or int(ids.max()) >= experts or _repeats(ids):
        return f"{choice.path} puts out ids that do not name {indices.width} of {experts} experts"
    if not _row_by_row(choice, module, mlp_input):
        return f"{choice.path} does not give the MLP's input one row of scores per token"
    router = Router(experts, indices.width, {"router_logits": logits.location})
    router.proofs.append("router_logits row t is the router's answer to mlp_in row t")
    users = [
        path
        for path, taken in forward.taken.items()
        if path != choice.path and {indices.identity, weights.identity} <= taken
    ]
    if not users:
        reason = f"no module was seen to take in the ids and weights that {choice.path} puts out"
        router.missing = {"expert_indices": reason, "expert_weights": reason}
        return router
    router.locations |= {"expert_indices": indices.location, "expert_weights": weights.location}
    router.proofs.append("expert_indices and expert_weights are what the experts take in")
    router.proofs += _identities(logits.value.float(), ids.long(), weights.value)
    return router


def _repeats(ids: torch.Tensor) -> bool:
    ordered = ids.sort(dim=-1).values
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())


def _row_by_row(choice: _RouterOutputs, module: torch.nn.Module, mlp_input: Visit | None) -> bool:
    """Whether the logits' rows are the router's answers to the rows of the MLP's input, in their order.

    A flattened tensor does not show the token of each row, so the router runs again on a few tokens alone.
    """
    if mlp_input is None:
        return False
    rows = mlp_input.value.flatten(0, 1)[_AGAIN : 2 * _AGAIN]
    try:
        with torch.no_grad():
            answer = module(rows)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (TypeError, ValueError, RuntimeError):  # it wants more than rows, or rows of another shape
        return False
    parts = answer if isinstance(answer, tuple | list) else [answer]
    again = parts[place_of(choice.logits.location).part]
    return isinstance(again, torch.Tensor) and close(
        again, choice.logits.value.flatten(0, 1)[_AGAIN : 2 * _AGAIN]
    )


def _identities(logits: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> list[str]:
    """Further identities of a router's three tensors; architectures differ here."""
    found = []
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, ids, True)
    least = logits.masked_fill(~chosen, torch.inf).amin(-1)
    most = logits.masked_fill(chosen, -torch.inf).amax(-1)
    if bool((least >= most).all()):
        found.append("expert_indices are the top k of router_logits")
    rules: Mapping[str, torch.Tensor] = {
        "softmax(router_logits)": logits.softmax(-1),
        "sigmoid(router_logits)": logits.sigmoid(),
    }
    for name, scores in rules.items():
        expected = scores.gather(-1, ids)
        if not close(weights, expected.to(weights.dtype)):
            # renormalised over the chosen experts, scaled by a constant, or both
            expected = expected / expected.sum(-1, keepdim=True)
            total = weights.float().sum(-1, keepdim=True)
            if not close((weights.float() / total).to(weights.dtype), expected.to(weights.dtype)):
                continue
            found.append(f"expert_weights are {name} of the chosen experts, rescaled")
        else:
            found.append(f"expert_weights are {name} of the chosen experts")
        break
    return found
