"""A host's requests in the engine's own form, and the engine's rows as data."""

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from worker.engine import messages
from worker.engine.messages import Request, Rows, TokenRule
from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import EarlierRows, Edit, GenerationRequest, RowChunk, RowShaping
from worker.engine.runs import CapturePlan, RunRequest
from worker.engine.token_rules import FollowedRule
from worker.text.segments import Markup

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
}
#: vectors on the engine's side that are remembered
_MOST_VECTORS = 256


class Translation:
    """Between a host and the engine of one model."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._markups: dict[bool, Markup] = {}
        #: one tensor for equal vectors, so that equal edits are made together
        self._vectors: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._sums: dict[str, EarlierRows] = {}

    def request(self, asked: Request) -> RunRequest:
        """The engine's form of a request."""
        request = GenerationRequest(
            key=asked.key,
            prompt_ids=asked.prompt_ids,
            seed=asked.seed,
            edits=tuple(map(self._edit, asked.edits)),
            max_tokens=asked.max_tokens,
            top_logprobs=asked.top_logprobs,
            score_prompt=asked.score_prompt,
            scored_next=asked.scored_next,
            stop_at=asked.stop_at,
            grammar=asked.grammar,
            chooser=self._rule(asked.rule),
            earlier=None if asked.sums is None else self._earlier(asked.sums),
        )
        return RunRequest(
            request=request,
            sampling=asked.sampling,
            capture=None if asked.capture is None else _plan(asked.capture),
            time_limit=asked.time_limit,
            priority=asked.priority,
        )

    def forget(self, sums: str) -> None:
        """Drop the summaries under this name."""
        self._sums.pop(sums, None)

    def _earlier(self, sums: str) -> EarlierRows:
        known = self._sums.get(sums)
        made = self._sums[sums] = EarlierRows() if known is None else EarlierRows(known.after or known.before)
        return made

    def _edit(self, edit: messages.Edit) -> Edit:
        return Edit(
            hook=edit.hook,
            op=edit.op,
            coefficient=edit.coefficient,
            vector=None if edit.vector is None else self._vector(edit.vector),
            positions=edit.positions,
            chooser=self._rule(edit.rule),
        )

    def _vector(self, numbers: NDArray[np.float32]) -> torch.Tensor:
        key = numbers.tobytes()
        vector = self._vectors.pop(key, None)
        if vector is None:
            vector = torch.from_numpy(numbers.copy())
        self._vectors[key] = vector
        while len(self._vectors) > _MOST_VECTORS:
            self._vectors.popitem(last=False)
        return vector

    def _rule(self, rule: TokenRule | None) -> FollowedRule | None:
        if rule is None:
            return None
        if rule.annotations not in self._markups:
            markup = Markup(self._model.tokenizer, annotations=rule.annotations)
            self._markups[rule.annotations] = markup
        return FollowedRule(rule, self._markups[rule.annotations])


def _plan(asked: messages.Capture) -> CapturePlan:
    columns = slice(asked.columns) if isinstance(asked.columns, int) else asked.columns
    return CapturePlan(
        hooks=asked.hooks,
        positions=asked.positions,
        dtype=asked.dtype,
        held_rows=asked.held_rows,
        shaping=RowShaping(columns=columns, reduce=asked.reduce, statistics=asked.statistics),
    )


def rows_of(chunk: RowChunk) -> Rows:
    """Rows as data, in the same memory."""
    pieces = tuple(_bytes_of(piece) for piece in chunk.pieces)
    dtype = DTYPE_NAMES[chunk.pieces[0].dtype]
    return Rows(chunk.first_row, pieces, dtype, chunk.tokens, chunk.over, chunk.finite)


def all_rows(rows: Mapping[str, RowChunk]) -> dict[str, Rows]:
    """The rows of each hook; hooks of one chunk share it."""
    known: dict[int, Rows] = {}
    for chunk in rows.values():
        if id(chunk) not in known:
            known[id(chunk)] = rows_of(chunk)
    return {hook: known[id(chunk)] for hook, chunk in rows.items()}


def _bytes_of(piece: torch.Tensor) -> NDArray[np.uint8]:
    size = piece.shape[1] * piece.dtype.itemsize
    if not len(piece):
        return np.empty((0, size), np.uint8)
    array: NDArray[np.uint8] = piece.contiguous().view(torch.uint8).numpy()
    return array.reshape(len(piece), size)
