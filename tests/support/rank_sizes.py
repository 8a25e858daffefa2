"""Weights and bytes per token of the ranks of a shared model, each a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def sizes_of_ranks(folder: Path, ranks: int, scratch: Path) -> list[list[int]]:
    """Bytes of each rank's weights, and of its keys and values of a token."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.rank_sizes",
                *map(str, (rank, ranks, folder, scratch / "meet")),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]
    return [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]


def main() -> None:
    from torch.distributed.tensor import DTensor

    from worker.engine.model import group
    from worker.engine.model.kv_cache import kv_bytes_per_token
    from worker.engine.model.load import load_model

    rank, ranks, folder, file = sys.argv[1:]
    group.join(int(rank), int(ranks), file)
    model = load_model(folder, dtype="bfloat16", ranks=int(ranks))
    hf: Any = model.hf
    own = [one.to_local() if isinstance(one, DTensor) else one for one in hf.parameters()]
    print(json.dumps([sum(one.nbytes for one in own), kv_bytes_per_token(model)]), flush=True)


if __name__ == "__main__":
    main()
