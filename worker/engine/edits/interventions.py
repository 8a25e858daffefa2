"""Changes of activations while the model runs, in the same pass that captures.

A hook names a tensor, and a change of it is a change for everything that the model computes from
it afterwards. So the rows are written in place, at the first location that shows the tensor:
other readers of the tensor (the residual stream around a norm) see the change as well, which assigning
`envoy.input` would not give. The editor is the first of a trace's observers, so readers see the
changed tensor.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.util import first_input

from actograph.contract.errors import CaptureFailed, InterventionFailed
from actograph.contract.row_selection import Selection
from worker.engine.locations import place_of
from worker.engine.requests import Edit, RowChooser

_NEVER = 1 << 40

Change = Callable[[torch.Tensor], torch.Tensor]  # float32 [rows, width] -> the same shape


class _FollowedChoice:
    """Answers of a chooser for one sample, however often they are asked for.

    Args:
        generated: live view of the sample's generated ids.
    """

    def __init__(self, chooser: RowChooser, prompt_ids: Sequence[int], generated: Sequence[int]) -> None:
        self.in_prompt = tuple(chooser.of_prompt(prompt_ids))
        self._prompt = len(prompt_ids)
        self._generated = generated
        self._judge = chooser.of_generation(prompt_ids)
        self._answers: list[bool] = []

    def holds(self, number: int) -> bool:
        """Whether generated token `number` (the first is 0) is chosen; False if it does not exist yet."""
        for place in range(len(self._answers), min(number + 1, len(self._generated))):
            self._answers.append(self._judge(self._prompt + place, self._generated[place]))
        return number < len(self._answers) and self._answers[number]


@dataclass(frozen=True, slots=True)
class _Planned:
    """One edit of some rows of the batch."""

    change: Change
    selections: Mapping[int, Selection]  # by row
    rows: tuple[int, ...]
    choices: Mapping[int, _FollowedChoice] | None  # of each row, where there is a chooser

    def columns(self, row: int, prompt: int, tokens: int) -> slice | list[int]:
        """Columns to change among the last `tokens` tokens of a left-padded prompt of `prompt` tokens."""
        shift = tokens - prompt
        if self.choices is not None:
            return [t + shift for t in self.choices[row].in_prompt if t + shift >= 0]
        rows = self.selections[row].rows(max(0, -shift), prompt, prompt)
        assert isinstance(rows, range)  # only choosers select single tokens
        return slice(rows.start + shift, rows.stop + shift)

    def at(self, prompts: Sequence[int], step: int) -> tuple[int, ...]:
        """Rows to change in decode step `step`, whose token is `prompt + step - 1`."""
        if self.choices is not None:
            return tuple(row for row in self.rows if self.choices[row].holds(step - 1))
        return tuple(
            row for row in self.rows if self.selections[row].holds(prompts[row] + step - 1, "answer")
        )


class _Site:
    """One location's edits and how many forwards have passed it."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.place = place_of(location)
        self.edits: list[_Planned] = []
        self.step = 0


class Editor:
    """Observes a trace and changes its tensors; attached before all readers.

    It also checks the head's output for NaN: edits can drive a model beyond its dtype's range, and sampling
    would turn NaN into an ordinary token.

    Args:
        lm: nnsight's model.
        edits: of each row of the batch, in the order in which they apply.
        location_of: where each hook's tensor is seen first.
        flat: locations whose tensors have batch and tokens in one dimension: [batch * tokens, ...].
        prompt_ids: of each row, without padding.
        generated_ids: live view of what each row has generated, for choosers; empty where nothing will be.
        head: location of the head's output; None where no token will be chosen by it.
    """

    def __init__(
        self,
        lm: Any,
        edits: Sequence[Sequence[Edit]],
        *,
        location_of: Mapping[str, str],
        flat: Collection[str],
        prompt_ids: Sequence[Sequence[int]],
        generated_ids: Sequence[Sequence[int]],
        head: str | None,
    ) -> None:
        self._prompts = tuple(map(len, prompt_ids))
        self._flat = flat
        self._indices: dict[tuple[tuple[int, ...], torch.device], torch.Tensor] = {}
        self._path = lm.path
        self._sites: dict[str, _Site] = {}
        followed: dict[tuple[RowChooser, int], _FollowedChoice] = {}

        def choice(chooser: RowChooser, row: int) -> _FollowedChoice:
            key = (chooser, row)
            if key not in followed:
                followed[key] = _FollowedChoice(chooser, prompt_ids[row], generated_ids[row])
            return followed[key]

        alike: dict[tuple[object, ...], list[int]] = {}
        for row, own in enumerate(edits):
            alike.setdefault(tuple(edit.kind for edit in own), []).append(row)
        for rows in alike.values():
            for place, edit in enumerate(edits[rows[0]]):
                choosers = {row: edits[row][place].chooser for row in rows}
                choices = {row: choice(one, row) for row, one in choosers.items() if one is not None}
                site = self._sites.setdefault(location_of[edit.hook], _Site(location_of[edit.hook]))
                selections = {row: Selection.of(edit.positions, self._prompts[row]) for row in rows}
                site.edits.append(_Planned(_change(edit), selections, tuple(rows), choices or None))
        self._head = None if head is None else self._sites.setdefault(head, _Site(head))
        # read once at the end, so that no step waits for the device
        self._first_bad = torch.full((len(self._prompts),), _NEVER)

    @property
    def modules(self) -> list[str]:
        """Paths of the modules whose hand-offs must be on."""
        return [site.place.path for site in self._sites.values()]

    def subscriptions(self) -> Mapping[str, _Site]:
        return {f"{self._path}.{s.place.path}.{s.place.side}": s for s in self._sites.values()}

    def observe_selected(self, selected: _Site, value: Any) -> None:
        """Write to the tensor at one location.

        Raises:
            CaptureFailed: the tensor does not have the shape that was verified when the model was loaded.
        """
        tensor = self._tensor(selected, value)
        if selected.step == 0:
            for edit in selected.edits:
                self._prefill(tensor, edit)
        else:
            for edit in selected.edits:
                self._decode(tensor, edit, selected.step)
        if selected is self._head:
            bad = tensor[:, -1].amax(-1).isnan()
            self._first_bad = self._first_bad.to(bad.device).minimum(torch.where(bad, selected.step, _NEVER))
        selected.step += 1

    def errors(self, generated: Sequence[int]) -> dict[int, InterventionFailed]:
        """Row of the batch -> error if its tokens come from NaN. `generated`: tokens per row."""
        return {
            row: InterventionFailed(
                f"the interventions drove the model to values that are not numbers (NaN) when it chose "
                f"generated token {step}; take a smaller coefficient or vector"
            )
            for row, step in enumerate(self._first_bad.tolist())
            if step < generated[row]
        }

    def _tensor(self, site: _Site, value: Any) -> torch.Tensor:
        """The tensor to write to, as [batch, tokens, ...]; a view, so that writing reaches the model."""
        if site.place.side == "input":
            value = first_input(*value)
        while isinstance(value, tuple | list):
            value = value[0]
        batch = len(self._prompts)
        shape = tuple(value.shape)
        if site.location in self._flat and shape[0] % batch == 0:
            value = value.view(batch, -1, *shape[1:])
        if value.ndim < 3 or value.shape[0] != batch or (site.step and value.shape[1] != 1):
            raise CaptureFailed(
                f"{site.location}: a tensor of shape {shape} came where rows of {batch} samples were due; "
                "the intervention cannot be placed"
            )
        return value  # type: ignore[no-any-return]

    def edit_piece(self, location: str, tensor: torch.Tensor, *, start: int, padded: int) -> None:
        """Write to tokens [start, start + n) of the padded prompts, at a location that is not traced.

        Args:
            tensor: [batch, n, ...].
        """
        site = self._sites.get(location)
        for edit in site.edits if site is not None else ():
            self._prefill(tensor, edit, start, padded)

    def _prefill(
        self, tensor: torch.Tensor, edit: _Planned, start: int = 0, padded: int | None = None
    ) -> None:
        # row by row: the float32 copies are then no larger than one sample's
        for row in edit.rows:
            columns = edit.columns(row, self._prompts[row], padded or tensor.shape[1])
            if padded is not None:
                columns = _within(columns, start, tensor.shape[1])
            if isinstance(columns, slice):
                if columns.stop > columns.start:
                    _write(tensor[row, columns], edit.change)
            elif columns:
                index = torch.tensor(columns, device=tensor.device)
                tensor[row, index] = _changed(tensor[row, index], edit.change)

    def _decode(self, tensor: torch.Tensor, edit: _Planned, step: int) -> None:
        rows = edit.at(self._prompts, step)
        if len(rows) == len(self._prompts):
            _write(tensor[:, 0], edit.change)
        elif rows:
            key = (rows, tensor.device)
            index = self._indices.get(key)
            if index is None:
                index = self._indices[key] = torch.tensor(rows, device=tensor.device)
            tensor[index, 0] = _changed(tensor[index, 0], edit.change)


def _within(columns: slice | list[int], start: int, count: int) -> slice | list[int]:
    """Columns counted from `start`, without those that are not among the `count` from there on."""
    if isinstance(columns, slice):
        first, stop = (min(max(0, edge - start), count) for edge in (columns.start, columns.stop))
        return slice(first, stop)
    return [column - start for column in columns if start <= column < start + count]


def _changed(rows: torch.Tensor, change: Change) -> torch.Tensor:
    """[rows, ...] after the change, in the dtype and shape that it had."""
    flat = rows.reshape(rows.shape[0], -1).to(torch.float32)
    return change(flat).reshape(rows.shape).to(rows.dtype)


def _write(rows: torch.Tensor, change: Change) -> None:
    rows.copy_(_changed(rows, change))


class _Vector:
    """A vector, copied to each device on first use."""

    def __init__(self, vector: torch.Tensor) -> None:
        self._on = {vector.device: vector}

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        found = self._on.get(x.device)
        if found is None:
            found = self._on[x.device] = next(iter(self._on.values())).to(x.device)
        return found


def _change(edit: Edit) -> Change:
    coefficient = edit.coefficient
    if edit.op == "zero":
        return torch.zeros_like
    if edit.op == "scale":
        return lambda x: x * coefficient
    if edit.vector is None:
        raise ValueError(f"{edit.op} needs a vector")
    if edit.op == "project_out":
        exact = edit.vector.to(torch.float64)
        direction = _Vector((exact / exact.norm()).to(torch.float32))

        # a sum per row, and not a matrix product: the same bits in any batch
        def without(x: torch.Tensor) -> torch.Tensor:
            along = direction.beside(x)
            return x - coefficient * (x * along).sum(-1, keepdim=True) * along

        return without
    vector = _Vector(edit.vector.to(torch.float32) * coefficient)
    if edit.op == "add":
        return lambda x: x + vector.beside(x)
    return lambda x: vector.beside(x).expand_as(x)
