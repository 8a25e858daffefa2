"""Unknown keyword arguments of the client's calls."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actograph import Client
from actograph.client.jobs import JobHandle
from actograph.client.transport import APIResource

#: arguments without a default, by name
VALUES: dict[str, Any] = {"change": {}, "sessions": "job_1", "other": "job_2"}


def calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public calls that take keyword arguments of any name, of the client and of what it returns."""
    client = Client("http://127.0.0.1:9", retries=0)
    job = JobHandle.model_construct(id="job_1")
    job._client = client
    owners = [client, job, *(one for one in vars(client).values() if isinstance(one, APIResource))]
    for owner in owners:
        for name in dir(type(owner)):
            if (name.startswith("_") and name != "__call__") or isinstance(owner, type):
                continue
            call = inspect.getattr_static(type(owner), name)
            if not inspect.isfunction(call) or not call.__module__.startswith("actograph"):
                continue
            kinds = {one.kind for one in inspect.signature(call).parameters.values()}
            if inspect.Parameter.VAR_KEYWORD in kinds:
                yield f"{type(owner).__name__}.{name}", getattr(owner, name)


def required(call: Callable[..., Any]) -> list[Any]:
    """A value for each positional argument without a default."""
    return [
        VALUES.get(one.name, "x")
        for one in inspect.signature(call).parameters.values()
        if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty
    ]


def test_every_call_with_free_keywords_refuses_unknown_ones(subtests: pytest.Subtests) -> None:
    walked = []
    for name, call in calls():
        walked.append(name)
        with (
            subtests.test(call=name),
            pytest.raises(TypeError, match="unexpected keyword argument 'postions'"),
        ):
            answer = call(*required(call), postions="generated")
            next(iter(answer))  # a generator runs at its first step
    assert {"Client.matrix", "JobHandle.matrix", "JobHandle.sessions", "Sessions.delete_many"} <= set(walked)
    assert len(walked) >= 18, walked


def test_the_nearest_name_is_named(subtests: pytest.Subtests) -> None:
    client = Client("http://127.0.0.1:9", retries=0)
    job = JobHandle.model_construct(id="job_1")
    job._client = client
    unknown: dict[str, dict[str, Any]] = {
        "positions": {"postions": "generated"},
        "condition": {"conditon": "x"},
    }
    for near, given in unknown.items():
        with subtests.test(near=near), pytest.raises(TypeError, match=f"Did you mean '{near}'"):
            job.matrix("embed", **given)
    with pytest.raises(TypeError, match="Did you mean 'dry_run'"):
        client.sessions.delete_many(job_id="job_1", dryrun=True)  # type: ignore[call-arg]
    # a job's sessions are those of this job
    with pytest.raises(TypeError, match="job_id"):
        job.sessions(job_id="job_2")
    # None stands for no value, and its name is checked all the same
    with pytest.raises(TypeError, match="Did you mean 'temperature'"):
        client.evaluate(temprature=None)  # type: ignore[call-arg]
