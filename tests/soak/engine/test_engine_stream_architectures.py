"""Every architecture in the decode loop: packed passes where the model allows them, traced ones always."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.integration.worker.engine.architectures.test_rehearsal import SERVED
from tests.support.architectures import ARCHITECTURES
from tests.support.engine_run import random_engine
from tests.support.plain_forward import plain_rows
from tests.support.stream_run import StreamRun, ask, plan_of, prompts
from worker.engine.attention_masks import UnknownAttention
from worker.engine.capture.budget import Budget
from worker.engine.packed.forward import PackedForward
from worker.engine.packed.verification import verify

#: models that packed passes refuse
TRACED_ONLY = {"falcon", "deepseek_v2", "deepseek_v3", "stablelm", "bloom", "mpt", "qwen3_next", "mamba"}
TRACED_ONLY |= {"opt", "opt, norms after"}
CONFIGS: dict[str, Callable[[], Any]] = {name: one.config for name, one in ARCHITECTURES.items()}
CONFIGS |= {name: config for name, (config, _) in SERVED.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_and_rows_are_those_of_a_plain_forward(
    shared: Path, name: str, subtests: pytest.Subtests
) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
    engine = random_engine(CONFIGS[name](), tokenizer, name)
    hooks = engine.hooks
    plan = plan_of(hooks)
    given = prompts((21, 1, 90, 8, 40), vocabulary=500)
    items = [ask(f"r{i}", prompt, 14 - i, capture=plan) for i, prompt in enumerate(given)]
    for kind in ("packed", "traced"):
        with subtests.test(kind=kind):
            run = StreamRun(items, {"r3": 2})
            options: dict[str, Any] = {"most": 3, "step_tokens": 32}
            if kind == "packed" and name in TRACED_ONLY:
                with pytest.raises(UnknownAttention):
                    verify(PackedForward(hooks, Budget(1 << 30), tokens=400))
                continue
            if kind == "packed":
                verify(PackedForward(hooks, Budget(1 << 30), tokens=400))
            run.run(hooks, kind, **options)
            assert not run.errors
            for item in items:
                ids = item.prompt_ids + run.ids(item.key)
                with torch.inference_mode():
                    logits = engine.model.hf(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits[0]
                assert run.ids(item.key) == tuple(logits[len(item.prompt_ids) - 1 :].argmax(-1).tolist())
                for hook, due in plain_rows(hooks, ids[:-1], plan.hooks).items():
                    got, tokens = run.rows(item.key, hook), run.tokens(item.key, hook)
                    if due.is_floating_point():
                        torch.testing.assert_close(
                            got, due[tokens], atol=1e-4, rtol=1e-3, msg=f"{item.key}: {hook}"
                        )
                    else:
                        assert torch.equal(got, due[tokens]), (item.key, hook)
