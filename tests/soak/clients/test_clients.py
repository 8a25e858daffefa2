"""Libraries on top of OpenAI's API, each in a virtual environment of its own, as their users write them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.openai.conftest import ASKED, MODEL
from tests.support import other_programs
from tests.support.availability import unavailable
from tests.support.servers import Unavailable

pytestmark = pytest.mark.integration

PROGRAMS = Path(__file__).with_name("programs.py")


def run(client: str, service: Any, home: Path) -> Any:
    try:
        python = other_programs.PROGRAMS[client]()
    except Unavailable as error:
        unavailable(str(error))
    done = subprocess.run(
        [str(python), str(PROGRAMS), client, f"{service.url}/v1", MODEL],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture
def plain(client: Any) -> str:
    """The model's answer of at most 12 tokens."""
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_tokens=12)
    return str(answer.choices[0].message.content)


def fits(place: dict[str, Any]) -> bool:
    return place["city"] in ("Paris", "Rome") and 0 <= place["size"] <= 99


def test_an_agent_of_openai_s_sdk_calls_its_tool_and_answers(service: Any, tmp_path: Path) -> None:
    found = run("agents", service, tmp_path)
    assert len(found["asked"]) >= 2 and set(found["asked"]) <= {"Paris", "Rome"}
    assert found["items"][:2] == ["tool_call_item", "tool_call_output_item"]
    assert found["items"][-1] == "message_output_item" and found["whole"] == found["streamed"]
    assert {"raw_response_event", "run_item_stream_event"} <= set(found["kinds"])
    jobs = service.jobs()
    assert len(jobs) == 2 * found["turns"]
    assert all(service.samples(job.id)[0].session_id for job in jobs)


def test_instructor_gets_a_valid_object(service: Any, tmp_path: Path) -> None:
    found = run("instructor", service, tmp_path)
    assert set(found) == {"TOOLS", "JSON_SCHEMA"} and all(map(fits, found.values()))


def test_litellm(service: Any, plain: str, tmp_path: Path) -> None:
    found = run("litellm", service, tmp_path)
    assert found["whole"] == found["streamed"] == plain
    assert found["response"].startswith(plain)  # it asks for 16 tokens at least
    assert service.session(found["session"]).token_ids()
    assert list(json.loads(found["arguments"])) == ["expression"]


def test_langchain(service: Any, plain: str, tmp_path: Path) -> None:
    found = run("langchain", service, tmp_path)
    assert found["whole"] == found["streamed"] == found["response"] == plain
    assert list(found["arguments"]) == ["expression"] and fits(found["form"])
