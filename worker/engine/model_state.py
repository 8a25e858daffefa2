"""State that lives with a loaded model, and that its requests share."""

from weakref import WeakValueDictionary

from worker.engine.capture.summaries import EarlierRows
from worker.engine.chosen_tokens import ChosenTokens, FollowedRule
from worker.engine.edits import Change, SlotEdits, content_of
from worker.engine.locations import ModelHooks
from worker.engine.messages import Edit, Request, TokenRule
from worker.text.segments import Markup


class ModelState:
    """Marks of segments, changes of edits, and summaries that go on from turn to turn.

    Nothing of it grows without a bound: a change lives as long as a request has it, and summaries until the
    host forgets them.
    """

    def __init__(self, hooks: ModelHooks) -> None:
        self.hooks = hooks
        self._devices = hooks.model.devices
        self._markups: dict[bool, Markup] = {}
        #: one change for equal edits, so that they are made together and have one vector on the device
        self._changes: WeakValueDictionary[object, Change] = WeakValueDictionary()
        self._sums: dict[str, EarlierRows] = {}

    def forget(self, sums: str) -> None:
        """Drop the summaries under this name."""
        self._sums.pop(sums, None)

    def earlier(self, sums: str) -> EarlierRows:
        """Summaries of the earlier turns under this name, for one turn more."""
        known = self._sums.get(sums)
        made = self._sums[sums] = EarlierRows() if known is None else EarlierRows(known.after or known.before)
        return made

    def kept(self, request: Request, generated: list[int]) -> ChosenTokens:
        """Tokens of a request whose rows are kept.

        Args:
            generated: live view of its generated ids.
        """
        assert request.capture is not None
        rule = self._rule(request.rule, request, generated)
        return ChosenTokens(request.capture.positions, rule, len(request.prompt_ids))

    def edits(self, request: Request, generated: list[int]) -> SlotEdits:
        """Edits of a request; arguments as for `kept`. Raises UnknownHook and ValueError."""
        prompt, made = len(request.prompt_ids), []
        after = {order: edit.after for order, edit in enumerate(request.edits) if edit.after is not None}
        for order, edit in enumerate(request.edits):
            if not edit.changes_nothing:
                rule = self._rule(edit.rule, request, generated)
                chosen = ChosenTokens(edit.positions, rule, prompt)
                made.append((self.hooks.edited_at(edit.hook), order, self._change(edit), chosen))
        return SlotEdits(made, after)

    def _change(self, edit: Edit) -> Change:
        key = content_of(edit)
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = Change(
                edit.op, edit.coefficient, edit.vector, self._devices, columns=edit.columns
            )
        return change

    def _rule(self, rule: TokenRule | None, request: Request, generated: list[int]) -> FollowedRule | None:
        if rule is None:
            return None
        return FollowedRule(rule, self._markup, request.prompt_ids, generated)

    def _markup(self, annotations: bool) -> Markup:
        if annotations not in self._markups:
            self._markups[annotations] = Markup(self.hooks.model.tokenizer, annotations=annotations)
        return self._markups[annotations]
