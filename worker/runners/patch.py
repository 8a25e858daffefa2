"""Patch jobs: pairs of stored sessions, whose prompts are read with rows of each other."""

from dataclasses import replace

from actograph.contract.errors import InvalidRequest, PairSkipped
from actograph.contract.job_specs import PatchSpec
from storage.analyses import pairs
from storage.queue.leases import LeasedSample
from worker.engine.messages import Readout, ReadoutAt
from worker.runners.replay import StoredSources
from worker.runners.runner import Prompt, PromptPair, ReplayedSample, Runner
from worker.text.tokenizer import Tokenizer


class PatchRunner(Runner):
    """One pair per sample, with the metric of many cells.

    Args:
        readout: that is the metric.
    """

    sampling = None

    def __init__(
        self, spec: PatchSpec, sources: StoredSources, tokenizer: Tokenizer, readout: Readout | None = None
    ) -> None:
        """Raises InvalidRequest: a text of the spec is not one token."""
        self.spec, self._readout = spec, readout
        self._sources = sources
        vocabulary = sources.structure.vocab_size
        self._answer = _id(spec.answer, tokenizer, vocabulary, "answer")
        self._against = _id(spec.against, tokenizer, vocabulary, "against")

    def prompt(self, sample: LeasedSample) -> Prompt:
        """The prompt that is patched, with both sides of the pair.

        Raises:
            InvalidRequest: a session was deleted, or is of another tokenizer or model.
            StoreDamaged: its files are missing or damaged.
            PairSkipped: nothing tells the answer, or both tokens are the same.
        """
        sides, texts = {}, {}
        for name, field in (("clean", pairs.CLEAN), ("corrupted", pairs.CORRUPTED)):
            source, sides[name] = self._sources.read(sample.input[field])
            texts[name] = source.prompt
            if not sides[name].same_model:
                raise InvalidRequest(
                    f"session {sample.input[field]} was recorded with another version of its model",
                    param="model",
                )
        into = "corrupted" if self.spec.source == "clean" else "clean"
        prompt = Prompt(text=texts[into], token_ids=sides[into].turns[0][0])
        if self._readout is not None:
            values = {name: self._value_at(side, self._readout) for name, side in sides.items()}
            return replace(
                prompt, pair=PromptPair(clean=sides["clean"], corrupted=sides["corrupted"], values=values)
            )
        answer = _first_token(sides["clean"]) if self._answer is None else self._answer
        against = None
        if self.spec.metric == "logit_difference":
            against = _first_token(sides["corrupted"]) if self._against is None else self._against
        if answer == against:
            raise PairSkipped(f"answer and against are the same token {answer}: no difference")
        pair = PromptPair(clean=sides["clean"], corrupted=sides["corrupted"], answer=answer, against=against)
        return replace(prompt, pair=pair)

    def _value_at(self, side: ReplayedSample, readout: Readout) -> ReadoutAt:
        """The place where the metric of a side is read. Raises PairSkipped."""
        metric, prompt = self.spec.metric_readout, len(side.turns[0][0])
        assert metric is not None
        token = metric.position + prompt if metric.position < 0 else metric.position
        if not 0 <= token < prompt:
            raise PairSkipped(
                f"the prompt of session {side.reader.session_id} has {prompt} tokens, and no token "
                f"{metric.position} at which the metric is read"
            )
        return ReadoutAt(readout=readout, token=token)

    def completion(self, sample: LeasedSample, token_ids: tuple[int, ...]) -> str:
        return ""


def _first_token(side: ReplayedSample) -> int:
    """The first generated token of a session. Raises PairSkipped."""
    generated = side.turns[0][1]
    if not generated:
        raise PairSkipped(
            f"session {side.reader.session_id} has generated no token; name the token in answer and against"
        )
    return generated[0]


def _id(given: int | str | None, tokenizer: Tokenizer, vocabulary: int, param: str) -> int | None:
    """The id of a token. Raises InvalidRequest for a text that is not one token, or an unknown id."""
    if isinstance(given, str):
        ids = tokenizer.encode(given, add_special_tokens=False)
        if len(ids) != 1:
            raise InvalidRequest(
                f"{given!r} is {len(ids)} tokens ({', '.join(map(str, ids))}) of this model; give the text "
                "of one token with its leading space, or an id",
                param=param,
            )
        return int(ids[0])
    if given is not None and given >= vocabulary:
        raise InvalidRequest(f"{param} is {given}; the model has tokens 0 to {vocabulary - 1}", param=param)
    return given
