"""lm-eval's model `actograph`, whose requests run as batches, each with a session.

    actograph lm-eval --model_args model=NAME,capture=resid_post@all --tasks gsm8k

Texts become tokens here, by the model's own tokenizer and lm-eval's own rules, so that scores are those of
lm-eval's `hf` backend. Each task of a call is a batch of its own.
"""

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any

from lm_eval import evaluator
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import AutoTokenizer
from typing_extensions import override

from actograph.client import Client
from actograph.client.jobs import FIRST_POLL_SECONDS, LAST_POLL_SECONDS
from actograph.contract.errors import ActographError, InvalidRequest
from actograph.contract.openai_answers import Batch
from actograph.drivers.options import capture_of, score_of
from actograph.progress import meter

NAME = "actograph"
ENDPOINT = "/v1/completions"
#: requests of one batch; its answers are in memory at once
MOST_REQUESTS = 2000


@register_model(NAME)
class ActographLM(TemplateLM):
    """A model of a service."""

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        capture: str | Sequence[str] | Mapping[str, Any] | None = None,
        run: str | None = None,
        tokenizer: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        enable_thinking: bool | None = None,
        priority: int = 8,
        seed: int = 1234,
        **_: Any,
    ) -> None:
        """
        Args:
            model: name under which the service serves it.
            base_url, api_key: the service; by default ACTOGRAPH_URL and ACTOGRAPH_API_KEY.
            capture: `POINTS@LAYERS` as on the command line, or a capture spec.
            run: tag of all sessions and batches; by default `run=` and a new id.
            tokenizer: folder or Hub id; by default that of the model.
            max_length: tokens that a score may read; by default the model's context.
            max_gen_toks: most tokens of an answer, unless the task says it.
            add_bos_token: whether texts begin with the tokenizer's special tokens; by default as it says.
            enable_thinking: passed to the chat template.
            priority: of the batches, from 0 (first) to 9.
            seed: of sampled answers; greedy ones need none.
            _: options of other backends, such as lm-eval's batch_size and device.
        """
        super().__init__()
        self._service = Client(base_url, api_key)
        structure = self._service.models.structure(model)
        self._model, self._priority, self._seed = model, priority, seed
        self._capture = capture_of(capture)
        self._add_bos = add_bos_token
        self._of_template: dict[str, Any] = (
            {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        )
        self.run = run or f"run={uuid.uuid4().hex[:16]}"
        self.max_length = max_length or structure.context_length
        self._max_gen_toks = max_gen_toks
        source = structure.identity.source if structure.identity else model
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer or source)
        #: requests that `loglikelihood` is turning into tokens
        self._scoring: list[Any] = []
        #: session ids by task and document
        self._sessions: dict[tuple[str, int], list[str]] = defaultdict(list)

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else int(begin)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    @override
    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        if add_special_tokens is None:
            begins = has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id))
            add_special_tokens = False if begins else self._add_bos
        options = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(string, **options))

    @override
    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **self._of_template,
            )
        )

    @override
    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        repeats: Counter[int] = Counter()
        bodies = []
        for one in requests:
            context, given = one.args
            options = normalize_gen_kwargs(given, self._max_gen_toks)
            most, repeat = options["max_gen_toks"], repeats[id(one)]
            repeats[id(one)] += 1
            bodies.append(
                {
                    "prompt": self.tok_encode(context)[-(self.max_length - most) :],
                    "max_tokens": most,
                    "stop": list(dict.fromkeys(stop for stop in options["until"] if stop)),
                    "seed": self._seed + repeat,
                    "sample": {"sample_index": one.doc_id, "epoch": repeat},
                    "temperature": options.get("temperature", 0),
                    **{name: options[name] for name in ("top_p", "top_k") if name in options},
                }
            )
        return [str(choice["text"]) for choice in self._ask(requests, bodies, show=not disable_tqdm)]

    @override
    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self._scoring = requests
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm)
        return found

    @override
    def _loglikelihood_tokens(
        self, requests: list[Any], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Called by `loglikelihood` with the tokens of its requests, in their order."""
        bodies = [
            self._scored(context, continuation, one.doc_id, f"choice-{one.idx}")
            for one, (_texts, context, continuation) in zip(self._scoring, requests, strict=True)
        ]
        answers = self._ask(self._scoring, bodies, show=not disable_tqdm)
        return [_likelihood(answer, len(of[2])) for answer, of in zip(answers, requests, strict=True)]

    @override
    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        owners, bodies, lengths = [], [], []
        for place, one in enumerate(requests):
            tokens = self.tok_encode(one.args[0])
            windows = get_rolling_token_windows(
                token_list=tokens,
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for number, window in enumerate(windows):
                context, continuation = make_disjoint_window(window)
                owners.append(place)
                bodies.append(self._scored(context, continuation, one.doc_id, f"window-{number}"))
                lengths.append(len(continuation))
        answers = self._ask([requests[place] for place in owners], bodies, show=not disable_tqdm)
        sums = [0.0] * len(requests)
        for place, answer, length in zip(owners, answers, lengths, strict=True):
            sums[place] += _likelihood(answer, length)[0]
        return sums

    def _scored(self, context: list[int], continuation: list[int], index: int, part: str) -> dict[str, Any]:
        """A request that only reads tokens, and scores them: the last of both, as `hf` cuts them."""
        if len(continuation) > self.max_length:
            raise InvalidRequest(
                f"document {index}, {part}: {len(continuation)} tokens are to be scored, and max_length is "
                f"{self.max_length}; raise max_length"
            )
        return {
            "prompt": [*context, *continuation][-(self.max_length + 1) :],
            "max_tokens": 0,
            "echo": True,
            "logprobs": 1,
            "sample": {"sample_index": index, "condition": part},
        }

    def _ask(
        self, requests: Sequence[Any], bodies: Sequence[dict[str, Any]], *, show: bool
    ) -> list[dict[str, Any]]:
        """The answered choice of each request. Their sessions are kept for the scores.

        Raises:
            ActographError: a batch, or one of its requests, failed.
        """
        shared = {"model": self._model} | ({} if self._capture is None else {"capture": self._capture})
        of_task: dict[str, list[int]] = defaultdict(list)
        for place, one in enumerate(requests):
            of_task[one.task_name].append(place)
        batches = []
        for task, places in of_task.items():
            for start in range(0, len(places), MOST_REQUESTS):
                some = places[start : start + MOST_REQUESTS]
                batches.append(self._send(task, {place: shared | bodies[place] for place in some}))
        choices: dict[int, dict[str, Any]] = {}
        try:
            for batch in self._ended(batches, len(bodies), show=show):
                choices |= self._choices(batch)
        except BaseException:  # Ctrl-C too
            for batch in batches:
                self._cancel(batch)
            raise
        for place, choice in sorted(choices.items()):
            if "session_id" in choice:
                one = requests[place]
                self._sessions[one.task_name, one.doc_id].append(choice["session_id"])
        return [choices[place] for place in range(len(bodies))]

    def _send(self, task: str, bodies: Mapping[int, dict[str, Any]]) -> Batch:
        lines = (
            {"custom_id": str(place), "method": "POST", "url": ENDPOINT, "body": body}
            for place, body in bodies.items()
        )
        with TemporaryDirectory() as folder:
            path = Path(folder) / "requests.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            file = self._service.files.upload(path, "batch")
        about = {"driver": "lm-eval", "task": task[:512], "run": self.run}
        options = {"completion_window": "7d", "metadata": about, "tags": [self.run]}
        return self._service.batches.create(file.id, ENDPOINT, priority=self._priority, **options)

    def _ended(self, batches: Sequence[Batch], total: int, *, show: bool) -> Iterable[Batch]:
        """Yield each batch once it has ended, in order."""
        before = 0
        with meter("requests", show=show) as update:
            for batch in batches:
                pause = FIRST_POLL_SECONDS
                while not (found := self._service.batches.get(batch.id)).status.is_terminal():
                    update("in_progress", before + found.request_counts.completed, total)
                    sleep(pause)
                    pause = min(pause * 1.5, LAST_POLL_SECONDS)
                before += found.request_counts.completed
                update(found.status, before, total)
                yield found

    def _choices(self, batch: Batch) -> dict[int, dict[str, Any]]:
        for error in batch.errors.data if batch.errors else ():
            raise ActographError(f"batch {batch.id} failed: {error.message}")
        if batch.error_file_id is not None:
            content = self._service.files.content(batch.error_file_id)
            first = json.loads(content.splitlines()[0])
            reason = (first["error"] or first["response"]["body"]["error"])["message"]
            raise ActographError(f"{batch.request_counts.failed} requests of {batch.id} failed: {reason}")
        if batch.output_file_id is None:
            raise ActographError(f"batch {batch.id} is {batch.status}")
        lines = map(json.loads, self._service.files.content(batch.output_file_id).splitlines())
        return {int(line["custom_id"]): line["response"]["body"]["choices"][0] for line in lines}

    def send_scores(self, samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> int:
        """Send the scores of lm-eval's samples, by task, to their sessions. Returns the number of sessions.

        Names are lm-eval's keys of metrics (`acc,none`); the first metric gives the verdict.
        """
        scores: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
        for task, lines in samples.items():
            for line in lines:
                for metric in line["metrics"]:
                    value = score_of(line.get(metric))
                    if value is not None:
                        scores[task, int(line["doc_id"])][f"{metric},{line['filter']}"] = {"value": value}
        sent = [
            {"session_id": one, "scores": found, "correct": next(iter(found.values()))["value"] == 1.0}
            for document, session_ids in self._sessions.items()
            if (found := scores.get(document))
            for one in session_ids
        ]
        self._sessions.clear()
        return self._service.sessions.score(sent)

    def _cancel(self, batch: Batch) -> None:
        with suppress(ActographError):  # it has ended, or the service is away
            self._service.batches.cancel(batch.id)


def _likelihood(choice: Mapping[str, Any], count: int) -> tuple[float, bool]:
    """Log probability of the last `count` tokens, and whether each is the most likely one."""
    found = choice["logprobs"]
    own, best = found["token_logprobs"][-count:], found["top_logprobs"][-count:]
    return sum(own), all(one >= max(top.values()) for one, top in zip(own, best, strict=True))


def _with_scores(evaluate: Any) -> Any:
    """lm-eval's `evaluate`, which has no hooks, with scores sent at its end."""

    @wraps(evaluate)
    def run(lm: Any, *args: Any, log_samples: bool = True, **options: Any) -> Any:
        model = getattr(lm, "lm", lm)  # lm-eval's cache wraps the model
        if not isinstance(model, ActographLM):
            return evaluate(lm, *args, log_samples=log_samples, **options)
        found = evaluate(lm, *args, log_samples=True, **options)
        if found is not None:
            model.send_scores(found["samples"])
            if not log_samples:
                del found["samples"]
        return found

    return run


evaluator.evaluate = _with_scores(evaluator.evaluate)
