"""Adapters of one base that one worker serves in turn."""

from pathlib import Path

import pytest

from actograph.contract.errors import ModelChanged
from actograph.contract.models import ModelIdentity
from actograph.settings import Settings
from tests.support.adapters import PROJECTIONS, adapted, saved_base
from worker.drain.model_holder import ModelHolder

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # of peft's training
]


def test_adapters_of_one_base_are_models_of_their_own_that_are_served_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = saved_base(tmp_path / "base")
    for seed, name in enumerate("ab"):
        adapted(base, tmp_path / name, seed, target_modules=PROJECTIONS)
    served = (f"base={base}", f"sad={base}+{tmp_path}/a", f"glad={base}+./b")
    settings = Settings(model=served[0], allowed_models=served[1:], home=tmp_path, threads=1, slots=2)
    models = ModelHolder(settings, lambda _: None)
    try:
        found: dict[str, ModelIdentity] = {}
        for name in ("base", "sad", "glad", "base", "sad"):
            identity = models.engine_for(name).structure.identity
            assert identity is not None
            assert found.setdefault(name, identity) == identity
        assert len({one.sha256 for one in found.values()}) == 3
        assert len({one.weights_sha256 for one in found.values()}) == 1
        assert found["base"].adapter_sha256 is None
        assert found["sad"].adapter == f"{tmp_path}/a"
        # a job pinned to one takes that one, and none that was overwritten since
        assert models.engine_as(found["glad"]).structure.identity == found["glad"]
        models.engine_for("base")
        adapted(base, tmp_path / "b", 7, target_modules=PROJECTIONS)
        with pytest.raises(ModelChanged, match="adapter_sha256"):
            models.engine_as(found["glad"])
    finally:
        models.close()
