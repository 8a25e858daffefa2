"""Activation patching by TransformerLens: `program.py FOLDER SOURCE INTO ANSWER AGAINST OUT POINT...`.

FOLDER has the model in transformers' format. SOURCE and INTO are token ids with commas. OUT becomes an .npz
with an array per point, [layers, positions], and [layers, positions, heads] for `z`, and the seconds taken.
AGAINST is -1 for the log probability of ANSWER.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge

POINTS: dict[str, Any] = {
    "resid_pre": patching.get_act_patch_resid_pre,
    "attn_out": patching.get_act_patch_attn_out,
    "mlp_out": patching.get_act_patch_mlp_out,
    "z": patching.get_act_patch_attn_head_out_by_pos,
}


def main(arguments: Sequence[str]) -> None:
    folder, *texts, first, second, out = arguments[:6]
    answer, against = int(first), int(second)
    model = TransformerBridge.boot_transformers(folder, device="cpu", dtype=torch.float32)
    model.eval()
    source, into = (torch.tensor([list(map(int, ids.split(",")))]) for ids in texts)

    def metric(logits: Any) -> Any:
        last = logits[0, -1].float()
        return last.log_softmax(-1)[answer] if against < 0 else last[answer] - last[against]

    found: dict[str, Any] = {}
    with torch.inference_mode():
        _, cache = model.run_with_cache(source)
        metric(model(into))
        started = time.process_time()
        for point in arguments[6:] or POINTS:
            found[point] = POINTS[point](model, into, cache, metric).numpy()
        found["seconds"] = np.array(time.process_time() - started)
    np.savez(out, **found)


if __name__ == "__main__":
    main(sys.argv[1:])
