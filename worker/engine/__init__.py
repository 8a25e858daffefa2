"""The one room that touches the model: tokens in, tokens and activation rows out.

A request has two forms: `messages.Request` is what is asked, and `slot.Slot` its state while it runs. Four
files have what one decode pass does:

1. `slot.py`: a request's tokens, keys and values, rows, and what the next pass runs of it.
2. `stream/loop.py`: a pass from its plan to the tokens that it gave and the requests that it ended.
3. `packed/forward.py`: the model over the next tokens of all slots.
4. `pass_hooks.py`: edits and captured rows at each hook of that forward.

What they call has files of its own: keys and values (`packed/arena.py`), attention (`packed/attention.py`),
the choice of tokens (`tokens/sampler.py`), blocks of rows (`capture/pool.py`), edits of passes that CUDA
graphs replay (`edit_tables.py`).
"""

import os
from pathlib import Path

# Read by nnsight when it is first imported, which only this room does. Its guard around glibc's
# backtrace() stays on: without it an error that torch raises inside a trace can end the process.
os.environ.setdefault("NNSIGHT_CONFIG", str(Path(__file__).with_name("nnsight.yaml")))
