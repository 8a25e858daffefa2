"""Inspect's model provider `actograph`, and the hook that sends scores back to the service.

    inspect eval TASK --model actograph/NAME -M capture=resid_post@all

Inspect finds both by the entry point `inspect_ai` of this package. It calls hooks for every model; those here
do nothing for other providers' generations.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread
from inspect_ai.hooks import Hooks, SampleAttemptStart, SampleEnd, hooks

# Inspect's own providers read the running sample here; its hook before a generation has another id
from inspect_ai.log._samples import sample_active
from inspect_ai.model import GenerateConfig, ModelOutput, modelapi
from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI
from typing_extensions import override

from actograph.client import Client
from actograph.drivers.options import capture_of, problem_index, score_of
from actograph.settings import Settings


@dataclass
class _Generations:
    """Generations of a running sample, and their sessions."""

    count: int = 0
    session_ids: dict[Client, list[str]] = field(default_factory=lambda: defaultdict(list))


#: by the id of a sample's execution
_running: dict[str, _Generations] = defaultdict(_Generations)


@modelapi(name="actograph")
class ActographAPI(OpenAICompatibleAPI):
    """A model of a service. Each generation is a chat with a session, if `capture` is given."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 (as Inspect's providers have it)
        *,
        capture: str | list[str] | dict[str, Any] | None = None,
        run: str | None = None,
        **model_args: Any,
    ) -> None:
        """
        Args:
            model_name: name under which the service serves it.
            base_url, api_key: the service; by default ACTOGRAPH_URL and ACTOGRAPH_API_KEY.
            capture: `POINTS@LAYERS` as on the command line, or a capture spec.
            run: tag of all sessions; by default `run=` and the id of Inspect's run.
            model_args: arguments of the `openai` package's client.
        """
        # Inspect and openai refuse an empty key; a service without keys ignores it
        key = api_key or Settings().api_key or "none"
        self._service = Client(base_url, key)
        self._capture = capture_of(capture)
        self._run = run
        super().__init__(
            model_name=model_name,
            base_url=f"{self._service.base_url}/v1",
            api_key=key,
            config=config,
            service="actograph",
            **model_args,
        )

    @override
    def completion_params(self, config: GenerateConfig, tools: bool) -> dict[str, Any]:
        params: dict[str, Any] = super().completion_params(config, tools)
        params["extra_body"] = {**self._fields(), **(params.get("extra_body") or {})}
        return params

    def _fields(self) -> dict[str, Any]:
        """Fields of a request: its capture, and the sample that it is of."""
        fields: dict[str, Any] = {} if self._capture is None else {"capture": self._capture}
        active = sample_active()
        if active is None:  # a call outside of samples
            return fields | {"tags": [self._run] if self._run else []}
        generations = _running[active.sample_uuid]
        generations.count += 1
        sample_id, epoch = active.sample.id, active.epoch
        about = {"task": active.task, "sample": sample_id, "epoch": epoch, "run": active.run_id}
        return fields | {
            "tags": [self._run or f"run={active.run_id}"],
            "sample": {
                "sample_index": problem_index(active.task, sample_id),
                "epoch": epoch - 1,
                "condition": f"generation-{generations.count}",
            },
            "metadata": {"driver": "inspect"} | {name: str(value)[:512] for name, value in about.items()},
        }

    @override
    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        answered = await super().generate(*args, **kwargs)
        if isinstance(answered, tuple) and isinstance(answered[0], ModelOutput):
            output, call = answered
            response = call.response or {}
            choices = [choice for choice in response.get("choices") or [] if choice.get("session_id")]
            session_ids = [choice["session_id"] for choice in choices]
            about = {"actograph_job_id": response.get("run_id"), "actograph_session_ids": session_ids}
            output.metadata = {**(output.metadata or {}), **about}
            if (active := sample_active()) is not None:
                _running[active.sample_uuid].session_ids[self._service].extend(session_ids)
        return answered


@hooks(name="actograph", description="Sends the scores of samples to their sessions.")
class ActographHooks(Hooks):
    """Sends the scores of each scored sample to its sessions."""

    async def on_sample_attempt_start(self, data: SampleAttemptStart) -> None:
        if data.attempt > 1:  # the score will not be that of the failed attempt
            _running[data.sample_id].session_ids.clear()

    async def on_sample_end(self, data: SampleEnd) -> None:
        generations = _running.pop(data.sample_id, None)
        if generations is None or not data.sample.scores:
            return
        scores = dict(_scores(data.sample.scores))
        first = next(iter(scores.values()), None)
        correct = None if first is None else first["value"] == 1.0
        for service, session_ids in generations.session_ids.items():
            sent = [{"session_id": one, "scores": scores, "correct": correct} for one in session_ids]
            await to_thread.run_sync(service.sessions.score, sent)


def _scores(given: Mapping[str, Any]) -> Any:
    """Yield the name and the score of each scorer, and of each part of a score with several."""
    for name, score in given.items():
        parts = score.value if isinstance(score.value, dict) else {"": score.value}
        for part, value in parts.items():
            number = score_of(value)
            if number is not None:
                answer = None if score.answer is None else str(score.answer)
                yield f"{name}.{part}".rstrip("."), {"value": number, "answer": answer}
