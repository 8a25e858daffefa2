"""Requests to the OpenAI-compatible routes: chats, texts, and lines of batch files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from actograph.contract import json_grammar
from actograph.contract.chat_job import ChatInput, is_only_read
from actograph.contract.errors import InvalidRequest
from actograph.contract.models import ModelStructure
from actograph.contract.specs import SamplingSpec
from actograph.contract.tool_calls import CLOSE, OPEN
from evals.scoring.completions import cut_at_stop
from storage.queue.leases import LeasedSample
from worker.engine.messages import Generation, TokenLogprobs
from worker.runners import text
from worker.runners.runner import Prompt, Runner
from worker.text.chat_template import render_chat
from worker.text.forced_call import ForcedCall, begin_call
from worker.text.token_names import TokenNames
from worker.text.tokenizer import Tokenizer


class ChatRunner(Runner):
    """One choice of a request per sample, which has its own sampling; nothing is scored."""

    sampling = None
    may_score = True

    def __init__(self, tokenizer: Tokenizer, structure: ModelStructure) -> None:
        self._tokenizer = tokenizer
        self._spoken = text.SpokenText(tokenizer)
        self._names = TokenNames(tokenizer)
        self._structure = structure
        self._eos = frozenset(structure.eos_token_ids)

    def prompt(self, sample: LeasedSample) -> Prompt:
        given = ChatInput.model_validate(sample.input)
        prompt = self._prompt(given)
        room, switch = self._structure.context_length - len(prompt.token_ids), self._structure.position_switch
        if switch is not None and len(prompt.token_ids) <= switch:
            room = switch - len(prompt.token_ids) + 1
        most = given.max_tokens
        if most is None:
            # if there is no room, the check of the context refuses the sample with the numbers
            most = max(1, min(given.default_max_tokens, room))
        scores = given.echo and given.top_logprobs is not None
        further = None
        if scores and most == 0 and room == -1:
            # the probability of the last token needs no place in the context, as lm-eval's windows have it
            *ids, further = prompt.token_ids
            prompt = replace(prompt, token_ids=tuple(ids))
        return replace(
            prompt, max_tokens=most, top_logprobs=given.top_logprobs, score_prompt=scores, scored_next=further
        )

    def _prompt(self, given: ChatInput) -> Prompt:
        if given.prompt_token_ids is not None:
            ids = tuple(given.prompt_token_ids)
            if not ids or max(ids) >= self._structure.vocab_size:
                # the engine would fail the whole batch
                raise InvalidRequest(
                    f"token ids must be from 0 to {self._structure.vocab_size - 1}", param="prompt"
                )
            shown = text.shown(self._tokenizer, ids, with_special=True)
            return Prompt(text=shown, token_ids=ids, grammar=given.grammar)
        if given.prompt is not None:
            prompt = text.encode(self._tokenizer, given.prompt, is_chat=False)
            return replace(prompt, grammar=given.grammar)
        if given.must_call:
            return self._begun_call(given)
        rendered = render_chat(
            self._tokenizer,
            given.messages or [],
            enable_thinking=given.enable_thinking,
            tools=given.tools,
            continues=given.continues,
            variables=given.template_variables,
        )
        grammar = given.grammar
        if given.strict_tools or (given.tools and grammar is not None):
            grammar = self._with_calls(given)
        return replace(text.encode(self._tokenizer, rendered, is_chat=True), grammar=grammar)

    def _call(self, given: ChatInput, name: str | None) -> ForcedCall:
        messages, tools = given.messages or [], given.tools or []
        return begin_call(
            self._tokenizer,
            messages,
            tools,
            enable_thinking=given.enable_thinking,
            name=name,
            variables=given.template_variables,
        )

    def _begun_call(self, given: ChatInput) -> Prompt:
        forced = self._call(given, given.call_name)
        schemas = json_grammar.arguments_of(given.tools or [])
        if given.call_name is None:
            grammar = json_grammar.of_call(schemas, forced.between)
        else:
            grammar = json_grammar.of_arguments(schemas[given.call_name])
        prompt = text.encode(self._tokenizer, forced.text, is_chat=True)
        return replace(prompt, begun=forced.begun, grammar=grammar)

    def _with_calls(self, given: ChatInput) -> str:
        """The grammar of an answer whose calls, if the model begins any, follow their tools' schemas.

        The rest of the answer is any text; or there are calls or a text in the form that was asked for.
        """
        forced = self._call(given, None)
        added = {str(token): token_id for token_id, token in self._tokenizer.added_tokens_decoder.items()}
        if OPEN not in added or CLOSE not in added:
            raise InvalidRequest(
                f"{OPEN} is not one token of this model, so a call that it begins itself can be neither "
                "strict nor beside a form of the answer; force the call by tool_choice, or leave strict and "
                "response_format out",
                param="tools",
            )
        calls = json_grammar.Calls(
            json_grammar.arguments_of(given.tools or [], given.strict_tools or ()),
            form=(forced.begun.removeprefix(OPEN), forced.between, forced.after),
            marks=(added[OPEN], added[CLOSE]),
        )
        if given.grammar is not None:
            return json_grammar.of_answer_or_calls(given.grammar, calls)
        others = [token_id for token, token_id in added.items() if token != OPEN]
        return json_grammar.of_text_with_calls(calls, others)

    def sampling_of(self, sample: LeasedSample) -> SamplingSpec | None:
        if is_only_read(sample.input):
            return None
        return SamplingSpec.model_validate(sample.input["sampling"])

    def completion(self, sample: LeasedSample, token_ids: tuple[int, ...]) -> str:
        sampling = self.sampling_of(sample)
        if sampling is None:
            return ""
        goes_on = any(sample.input.get(name) for name in ("echo", "must_call", "continues"))
        said = self._spoken.further(token_ids) if goes_on else self._spoken.of(token_ids)
        return cut_at_stop(said, sampling.stop)

    def logprobs(self, sample: LeasedSample, generation: Generation) -> Sequence[Mapping[str, Any]] | None:
        """Log probabilities: a chat's without end tokens, a text's with `top` by token name."""
        if sample.input.get("messages") is None:
            return self._of_text(sample, generation)
        if generation.logprobs is None:
            return None
        return [
            self._named(of.token_id, of.logprob)
            | {"top_logprobs": [self._named(token_id, logprob) for token_id, logprob in of.top]}
            for of in generation.logprobs[: -1 if generation.finish_reason == "readout" else None]
            if of.token_id not in self._eos
        ]

    def _of_text(self, sample: LeasedSample, generation: Generation) -> list[dict[str, Any]] | None:
        if sample.input.get("top_logprobs") is None:
            return None
        before = generation.prompt_logprobs or ()
        found = [*before, *(generation.logprobs or ())]
        # the first token has no probability, and one beyond the context is no token of the prompt
        ids = [*generation.prompt_ids[:1], *(of.token_id for of in before[1:] if of is not None)]
        ids = [*ids[: len(before)], *generation.generated_ids]
        return [
            {"token": name, "bytes": spelled}
            | ({} if of is None else {"logprob": of.logprob, "top": self._likeliest(of)})
            for of, (name, spelled) in zip(found, map(self._names.of, ids), strict=True)
        ]

    def _likeliest(self, of: TokenLogprobs) -> dict[str, float]:
        """Log probabilities by token name, with the chosen token; the likelier one if two names are equal."""
        found: dict[str, float] = {}
        for token_id, logprob in (*of.top, (of.token_id, of.logprob)):
            found.setdefault(self._names.of(token_id)[0], logprob)
        return found

    def _named(self, token_id: int, logprob: float) -> dict[str, Any]:
        token, spelled = self._names.of(token_id)
        return {"token": token, "logprob": logprob, "bytes": spelled}
