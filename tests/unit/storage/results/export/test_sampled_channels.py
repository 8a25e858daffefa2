"""Which channels of the model a `sampled` export shows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifacts.factory import open_store
from storage.results.export.sample import sampled
from storage.sessions.manifest import StoredTensor
from storage.sessions.reader import SessionReader
from storage.sessions.writer import SessionWriter, TensorRows
from tests.support.samples import manifest_of


def test_the_shown_channels_are_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    (tmp_path / "store").mkdir()
    store = open_store((tmp_path / "store").as_uri())
    chosen = list(range(200, 80, -2))
    cases: list[tuple[str, int, Any, dict[str, Any]]] = [
        ("all of a wide hook", 64, None, {"sample_info": "first_50_features"}),
        ("all of a narrow hook", 8, None, {"sample_info": "first_8_features"}),
        ("the first", 20, {"first": 20}, {"sample_info": "first_20_features"}),
        ("one", 1, {"indices": [7]}, {"sample_info": "first_1_chosen_features", "features": [7]}),
        (
            "many",
            60,
            {"indices": chosen},
            {"sample_info": "first_50_chosen_features", "features": chosen[:50]},
        ),
    ]
    for number, (title, width, features, due) in enumerate(cases):
        with subtests.test(title):
            name, rows = f"ses_{number:032x}", np.arange(3 * width, dtype="<f4").reshape(3, width)
            manifest = manifest_of(
                name, {"embed": StoredTensor(shape=(3, width), dtype="F32")}, capture={"features": features}
            )
            with SessionWriter(store, name) as writer:
                writer.write_shard([TensorRows("embed", "F32", (3, width), 0, rows)])
                writer.finish(manifest, [1, 2, 3, 4])
            reader = SessionReader(store, name)
            entry = json.loads(b"".join(sampled(reader, reader.manifest.tensors)))["embed"]
            assert {key: entry[key] for key in ("sample_info", "features") if key in entry} == due
            assert entry["data"] == rows[:, :50].tolist()
