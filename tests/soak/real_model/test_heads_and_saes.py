"""Induction heads through stored patterns, and an SAE that SAELens trains on stored rows, on a real model."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from actograph.client import Client
from tests.support import other_programs
from tests.support.availability import unavailable
from tests.support.isolated_python import REPO
from tests.support.saelens import PROGRAM
from tests.support.servers import Unavailable

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

WORDS = 24


def random_words(model: Path, count: int) -> list[str]:
    """Words of one token each, in an order that says nothing."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = tokenizer.batch_decode([[one] for one in range(len(tokenizer))])
    words = sorted(text for text in texts if re.fullmatch(r" [a-z]{5,9}", text))
    return [str(word) for word in np.random.default_rng(0).choice(words, count, replace=False)]


def test_induction_heads_look_at_what_followed_the_last_time(client: Client, smollm2: Path) -> None:
    """Elhage et al. 2021, Olsson et al. 2022: on repeated random tokens, from a token to the one after its
    first occurrence. Texts that repeat nothing are the control."""
    words = random_words(smollm2, 8 * WORDS)
    texts = []
    for start in range(0, len(words), 2 * WORDS):
        first, second = "".join(words[start : start + WORDS]), "".join(words[start + WORDS :][:WORDS])
        texts += [first + first, first + second]
    capture = {"points": ["q", "k"], "layers": "all"}
    job = client.capture(texts, capture=capture, mode="prefill").wait()
    scores: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for session in job.sessions():
        ids, is_control = session.token_ids.tolist(), session.sample_index % 2
        assert len(ids) == 2 * WORDS and (ids[:WORDS] == ids[WORDS:]) == (not is_control)
        now = np.arange(WORDS, 2 * WORDS - 1)
        layers = [session.attention(layer) for layer in range(30)]
        scores[is_control].append(np.array([one[:, now, now - WORDS + 1].mean(axis=1) for one in layers]))
    repeated, control = (np.mean(scores[kind], axis=0) for kind in (0, 1))
    assert repeated.shape == (30, 9)
    heads = np.argwhere(repeated > 0.5)
    assert 3 <= len(heads) <= 40, "some heads, and not most of them"
    assert heads[:, 0].min() > 0, "they need a layer before them"
    assert control[repeated > 0.5].max() < 0.1


def test_saelens_trains_on_rows_of_answers_and_the_service_encodes_as_it_does(
    client: Client, shared: Path, data_root: Path, tmp_path: Path
) -> None:
    try:
        python = other_programs.sae()
    except Unavailable as error:
        unavailable(str(error))
    hook = "resid_post.14"

    def ask(act: str, *folders: Path) -> None:
        command = [str(python), str(PROGRAM), act, hook, str(data_root / "saes"), *map(str, folders)]
        quiet = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "PATH": os.environ["PATH"]}
        quiet |= {"HOME": str(tmp_path), "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "2"}
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    problems = shared / "data/gsm8k/test.jsonl"
    job = client.evaluate("gsm8k", dataset=problems, limit=24, max_tokens=32, capture=hook).wait()
    ask("train", *(one.download(tmp_path / "rows") for one in job.sessions()))
    folder = data_root / "saes" / "topk"
    sae = client.saes.create("res-14", path=str(folder))
    wanted = {"hooks": [hook], "saes": [{"sae": sae.id, "hook": hook, "top": 64}]}
    job = client.evaluate("gsm8k", dataset=problems, offset=24, limit=4, max_tokens=32, capture=wanted).wait()
    sessions = list(job.sessions())
    ask("encode", *(one.download(tmp_path / "encoded") for one in sessions))
    due = np.load(f"{folder}.npy")
    found = np.concatenate([one.latents("res-14").dense() for one in sessions])
    np.testing.assert_allclose(found, due, atol=1e-5 * due.max(), rtol=1e-5)
    # of problems that it never saw, more than the mean row tells
    rows = np.concatenate([one[hook][:] for one in sessions])
    assert 0 < (found > 0).sum(axis=1).mean() <= 9 and len(rows) == len(found)
