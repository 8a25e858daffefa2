"""A stored sample that is read again: each turn is one text, of prompt and generated tokens.

The engine generates nothing. A turn's generated tokens, but for the last, which the model never ran, are
read with its prompt. What the engine answers becomes the stored generation again, so turns, segments and
token numbers are those of the stored session.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest, StoreDamaged
from actograph.contract.models import ModelStructure
from actograph.contract.row_selection import Positions, Selection
from storage.sessions.manifest import SessionManifest
from worker.engine.messages import Edit, Generation, TokenRule
from worker.runners.runner import Prompt, ReplayedSample
from worker.sample.conversation import Conversation, TurnPrompt
from worker.sample.steering import UNSTEERED, Steering
from worker.text.segments import Markup

#: a job's spec -> its interventions, resolved for the loaded model
SteeringOf = Callable[[Mapping[str, Any]], Steering]


class Replay:
    """The turns of one stored sample, and the tokens whose rows are kept.

    Attributes:
        source: the sample.
        names: the segment of every token.
        due: tokens whose rows are kept, ascending; empty if nothing is captured.
    """

    def __init__(
        self,
        source: ReplayedSample,
        *,
        positions: Positions | None,
        steering: Steering,
        structure: ModelStructure,
        markup: Markup,
    ) -> None:
        """
        Args:
            positions: tokens to keep.
            steering: of the sample's job.

        Raises:
            StoreDamaged: turns and segments of the manifest do not describe its tokens.
            InvalidRequest: the model cannot make the interventions of the session.
            ContextLengthExceeded: a turn is longer than the model's context.
            CaptureFailed: `positions` lists a token that the sample does not have.
        """
        manifest = source.reader.manifest
        self.source = source
        self.names = [one.name for one in manifest.segments for _ in range(one.start, one.stop)]
        self._steering = steering
        self._reason = manifest.finish_reason or "stop"
        whole = Conversation(markup, self.names)
        for prompt, generated in source.turns:
            begun = whole.begin(prompt)
            made = Generation(key="", prompt_ids=prompt, generated_ids=generated, finish_reason="stop")
            whole.end(begun, made)
        described = (whole.token_ids, whole.turns, len(self.names))
        if described != (source.token_ids, manifest.turns, manifest.num_tokens):
            raise StoreDamaged(
                f"session {manifest.session_id}: its turns and segments do not describe its tokens"
            )
        self._first_prompt = whole.prompt_tokens
        longest = max(len(_read(turn)) for turn in source.turns)
        if longest > structure.context_length:
            raise ContextLengthExceeded(
                f"session {manifest.session_id} has a turn of {longest} tokens; the context of "
                f"{structure.model} has {structure.context_length}"
            )
        self.due = [] if positions is None else whole.due_tokens(positions, tail_only=False)
        self._due = frozenset(self.due)

    @property
    def manifest(self) -> SessionManifest:
        return self.source.reader.manifest

    def prompt(self, turn: int, first: Prompt) -> Prompt | None:
        """The prompt of a turn; None after the last one."""
        if turn == len(self.source.turns):
            return None
        return replace(first, token_ids=self.source.turns[turn][0])

    def read(self, turn: int) -> tuple[int, ...]:
        """The tokens that the model reads in a turn."""
        return _read(self.source.turns[turn])

    def kept(self, begun: TurnPrompt, turn: int) -> TokenRule | None:
        """The tokens of a turn whose rows are kept; None if all are, as the engine can share prompts then."""
        rule = self._rule(begun, turn, self._due, from_place=begun.first_row)
        return None if len(rule.prompt) == len(self.read(turn)) else rule

    def edits(self, begun: TurnPrompt, turn: int) -> tuple[Edit, ...]:
        """The interventions of the stored sample, at the same tokens."""

        def rule(positions: Positions) -> TokenRule:
            judge = Selection.of(positions, self._first_prompt).follow()
            chosen = frozenset(number for number, name in enumerate(self.names) if judge(number, name))
            return self._rule(begun, turn, chosen)

        return self._steering.edits(self.source.condition, rule, is_first=False)

    def answer(self, generation: Generation, turn: int) -> Generation:
        """The stored generation of a turn, in place of the engine's answer about the text."""
        prompt, generated = self.source.turns[turn]
        is_last = turn == len(self.source.turns) - 1
        return replace(
            generation,
            prompt_ids=prompt,
            generated_ids=generated,
            finish_reason=self._reason if is_last else "stop",
        )

    def _rule(
        self, begun: TurnPrompt, turn: int, numbers: Collection[int], *, from_place: int = 0
    ) -> TokenRule:
        """The places of a turn whose tokens are among these."""
        count = len(self.read(turn))
        return TokenRule(
            prompt=tuple(place for place in range(from_place, count) if begun.number(place) in numbers),
            positions="all",
            first_prompt=self._first_prompt,
            number=begun.number(count),
        )


def steering_for(source: ReplayedSample, of_job: SteeringOf) -> Steering:
    """The interventions of a stored sample, as they were applied.

    Args:
        of_job: resolves the interventions of a job's spec for the loaded model.

    Raises:
        InvalidRequest: the model is another one, or a vector or row that was used is not there any more.
    """
    manifest = source.reader.manifest
    if not manifest.interventions:
        return UNSTEERED
    said = f"session {manifest.session_id} was recorded under interventions"
    if any(one.after is not None for one in manifest.interventions):
        raise InvalidRequest(
            f"{said} that began when a readout crossed a number. A replay reads all tokens at once, when "
            "nobody knows where that was",
            param="sessions",
        )
    if not source.same_model:
        raise InvalidRequest(
            f"{said} on {manifest.model}, which mean nothing to another model; replay it on its own model",
            param="model",
        )
    try:
        steering = of_job(source.spec)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{said}, which cannot be made again: {error.message}", param="sessions"
        ) from error
    if list(steering.records(source.condition)) != manifest.interventions:
        origin = f"; replay session {manifest.source_session}" if manifest.source_session else ""
        raise InvalidRequest(f"{said} that its job does not have{origin}", param="sessions")
    return steering


def _read(turn: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[int, ...]:
    """The tokens of a turn that the model ran: the last generated one was never its input."""
    prompt, generated = turn
    return (*prompt, *generated[:-1])
