"""With `--repeatable` a job has the same bits twice, beside others and with its engine killed in between."""

from collections.abc import Callable
from typing import Any

import psutil
import pytest

from actograph.client import Client
from actograph.client.jobs import JobHandle
from tests.support.processes import words_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUMBER = 60
HOOKS = ["resid_post.0", "mlp_out.1", "logits"]
SPEC = {
    "kind": "capture",
    "model": "demo",
    "inputs": [{"prompt": f"{number} + {3 * number} = " * (1 + number % 5)} for number in range(NUMBER)],
    "sampling": {"max_tokens": 48, "temperature": 0.8, "seed": 5},
    "capture": {"hooks": HOOKS},
}


def bits(job: JobHandle) -> dict[int, list[bytes]]:
    """Token ids and rows of each sample."""
    done = job.wait()
    assert done.progress.completed == NUMBER
    assert done.model_identity is not None and done.model_identity.repeatable
    return {
        session.sample_index: [session.token_ids.tobytes(), *(session[hook][:].tobytes() for hook in HOOKS)]
        for session in done.sessions()
    }


def engine_of(service: Any) -> psutil.Process:
    (found,) = [one for one in service.children() if "worker.engine" in words_of(one)]
    return found


def test_bits_survive_neighbours_and_a_kill(up: Callable[..., Any], wait: Callable[..., None]) -> None:
    service = up("--repeatable", "--dtype=bfloat16")
    service.await_ready()
    with Client(service.url) as client:
        alone = bits(client.submit(SPEC))
        assert len(alone) == NUMBER
        others = [client.submit(SPEC | {"sampling": {"max_tokens": most, "seed": most}}) for most in (9, 40)]
        again = client.submit(SPEC)
        wait(lambda: again.refresh().progress.completed >= 5)
        engine_of(service).kill()
        assert bits(again) == alone
        for other in others:
            assert bits(other).keys() == alone.keys()
    assert service.stop() == 0
