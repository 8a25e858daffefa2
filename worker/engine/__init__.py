"""The one room that touches the model: tokens in, tokens and activation rows out."""

import os
from pathlib import Path

# Read by nnsight when it is first imported, which only this room does. Its guard around glibc's
# backtrace() stays on: without it an error that torch raises inside a trace can end the process.
os.environ.setdefault("NNSIGHT_CONFIG", str(Path(__file__).with_name("nnsight.yaml")))
