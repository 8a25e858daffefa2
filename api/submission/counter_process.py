"""Runs `api.submission.token_counter` in a child process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_TIMEOUT_SECONDS = 30.0
_COUNTER = Path(__file__).with_name("token_counter.py")


def run(question: Any, definition: bytes) -> Any:
    """Send a question to a tokenizer, and return its answer.

    Args:
        question: JSON, see `api.submission.token_counter`.
        definition: the tokenizer as `storage.queue.model_tokenizers` stores it.

    Raises:
        OSError, subprocess.SubprocessError, ValueError: the process failed or took too long.
    """
    ended = subprocess.run(
        [sys.executable, "-P", "-s", str(_COUNTER)],
        input=json.dumps(question).encode() + b"\n" + definition,
        capture_output=True,
        timeout=_TIMEOUT_SECONDS,
        check=True,
        # the child does not receive our secrets
        env={"PATH": os.environ.get("PATH", ""), "TOKENIZERS_PARALLELISM": "false"},
    )
    return json.loads(ended.stdout)
