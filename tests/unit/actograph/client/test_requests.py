"""Jobs from short arguments: evaluate, capture, extract."""

import json
from pathlib import Path
from typing import Any

import pytest

from actograph.client import AsyncClient, Client
from actograph.contract import resources
from actograph.contract.errors import Conflict, InvalidRequest, NotFound
from actograph.contract.specs import CaptureSpec, Condition

FILE = "file_" + "0" * 31 + "1"


@pytest.fixture(autouse=True)
def one_model(service: Any) -> None:
    model = resources.Model(id="demo", created=1)
    service.models.append(model)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    return path


def sent(service: Any) -> Any:
    return json.loads(next(seen.body for seen in reversed(service.seen) if seen.path == "/v1/jobs"))


def test_an_evaluation_in_one_call(service: Any, plain: Client, problems: Path) -> None:
    job = plain.evaluate(
        "gsm8k", dataset=problems, capture="resid_post,embed@1:3", conditions=["plain", "EP02:suffix=So."],
        epochs=2, temperature=0.5, max_tokens=9, tags=["night"], scorers=["numeric"], expires_after=60,
    )  # fmt: skip
    assert job.kind == "evaluation"
    assert sent(service) == {
        "kind": "evaluation", "model": "demo", "task": "gsm8k", "dataset": {"file_id": FILE},
        "capture": {"points": ["resid_post", "embed"], "layers": "1:3"}, "epochs": 2, "tags": ["night"],
        "conditions": [{"name": "plain"}, {"name": "EP02", "suffix": "So."}], "scorers": ["numeric"],
        "sampling": {"temperature": 0.5, "max_tokens": 9}, "expires_after": {"seconds": 60},
    }  # fmt: skip
    assert service.uploads[FILE][:2] == ("problems.jsonl", "dataset")


def test_defaults_are_those_of_the_command(service: Any, plain: Client) -> None:
    plain.evaluate(num_fewshot=5)
    gsm8k = {"hub": "openai/gsm8k", "config": "main"}
    body = sent(service)
    assert body["dataset"] == gsm8k | {"split": "test"}
    assert body["fewshot_dataset"] == gsm8k | {"split": "train"}
    assert "capture" not in body


def test_objects_of_the_contract_are_sent(service: Any, plain: Client) -> None:
    plain.evaluate(
        dataset="hub:me/mine:main:test", capture=CaptureSpec(points=["embed"], reduce="mean"),
        conditions=[Condition(name="calm", prefix="Breathe. "), {"name": "b"}],
    )  # fmt: skip
    body = sent(service)
    assert body["dataset"] == {"hub": "me/mine", "config": "main", "split": "test"}
    assert body["capture"] == {"points": ["embed"], "reduce": "mean"}
    assert body["conditions"] == [{"name": "calm", "prefix": "Breathe. "}, {"name": "b"}]


@pytest.mark.parametrize(
    ("prompts", "inputs"),
    [
        ("Once", [{"prompt": "Once"}]),
        (["Once", "Twice"], [{"prompt": "Once"}, {"prompt": "Twice"}]),
        ([{"role": "user", "content": "Hi"}], [{"messages": [{"role": "user", "content": "Hi"}]}]),
        (
            ["Once", [{"role": "user", "content": "Hi"}]],
            [{"prompt": "Once"}, {"messages": [{"role": "user", "content": "Hi"}]}],
        ),
    ],
)
def test_prompts_and_texts(service: Any, plain: Client, prompts: Any, inputs: Any) -> None:
    plain.capture(prompts, capture="mlp_in.1", max_tokens=3, seed=4)
    assert sent(service) == {
        "kind": "capture", "model": "demo", "inputs": inputs, "capture": {"hooks": ["mlp_in.1"]},
        "sampling": {"max_tokens": 3, "seed": 4},
    }  # fmt: skip
    plain.extract(prompts, model="other")
    assert sent(service) == {"kind": "extract", "model": "other", "inputs": inputs}


def test_texts_of_a_dataset(service: Any, plain: Client, problems: Path) -> None:
    plain.extract(dataset=str(problems), text_field="question", limit=1, truncate=True)
    assert sent(service) == {
        "kind": "extract", "model": "demo", "dataset": {"file_id": FILE}, "text_field": "question",
        "limit": 1, "truncate": True,
    }  # fmt: skip


def test_nothing_is_sent_for_an_invalid_job(service: Any, plain: Client, problems: Path) -> None:
    for options in ({"epochs": 0}, {"colour": "red"}, {"capture": "@3"}, {"dataset": "none.jsonl"}):
        with pytest.raises(InvalidRequest):
            plain.evaluate(**({"dataset": problems} | options))
    with pytest.raises(InvalidRequest, match="either texts or a dataset"):
        plain.extract()
    with pytest.raises(InvalidRequest, match="either texts or a dataset"):
        plain.extract("a", dataset=problems)
    service.models.clear()
    with pytest.raises(InvalidRequest, match="choose a model"):
        plain.capture("Once")
    assert service.paths("POST") == []


def test_coroutines_send_alike(service: Any, go: Any, problems: Path) -> None:
    async def talk(client: AsyncClient) -> None:
        job = await client.evaluate(dataset=problems, limit=1)
        assert (await client.jobs.list().one()).id == job.id
        assert (await client.capture("Once")).kind == "capture"

    go(talk)


def test_the_first_and_the_only_one(service: Any, plain: Client) -> None:
    with pytest.raises(NotFound, match="no job matches"):
        plain.jobs.list().first()
    older = service.add_job(1, tags=["a"])
    assert plain.jobs.list().one() == older
    newer = service.add_job(2)
    assert plain.jobs.list().first() == newer
    assert plain.jobs.list(tag="a").one() == older
    assert [job.id for job in plain.jobs.list()] == [newer.id, older.id]
    with pytest.raises(Conflict, match="several jobs match"):
        plain.jobs.list().one()
    with pytest.raises(NotFound, match="no session matches"):
        plain.jobs.get(older.id).sessions().first()


def test_errors_of_the_service_are_those_of_local_calls(service: Any, plain: Client) -> None:
    from actograph.client import ApiError, Forbidden

    with pytest.raises(NotFound) as raised:
        plain.jobs.get("job_none")
    assert isinstance(raised.value, ApiError)
    assert (raised.value.status, raised.value.code) == (404, "not_found")
    with pytest.raises(InvalidRequest, match="Field required"):
        plain.submit({"kind": "evaluation"})
    service.faults.append(403)
    with pytest.raises(Forbidden):
        plain.jobs.get("job_none")
    done = service.add_job(3)
    with pytest.raises(Conflict, match="completed already"):
        plain.jobs.cancel(done.id)
