"""Jobs that store latents of SAEs: of every kind of sample, equal to the formulas on the stored rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from actograph.client import open_folder
from actograph.contract.resources import JobStatus, Sample
from storage.jobs import jobs
from storage.sessions.reader import SessionReader
from storage.tables.models import FileRow, SaeRow
from tests.support.additions import TASK, additions
from tests.support.saes import detector, encoded, sae_tensors, store_sae, write_sae

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

TEXT = "Tom has 34 books and Mia has 57 books. How many do they have in total?"
D_SAE = 40


class Stored:
    """An SAE of a bench: for the residual stream, or with given weights."""

    def __init__(
        self, bench: "Bench", architecture: str = "standard", name: str = "s", **changes: Any
    ) -> None:
        root = Path(bench.settings.data_roots[0])
        sizes = {"d_in": bench.engine.width_of("resid_post.1"), "d_sae": D_SAE}
        self.tensors = changes.pop("tensors", None) or sae_tensors(architecture, **sizes)
        hook = changes.pop("hook", None)
        sizes["d_in"], sizes["d_sae"] = self.tensors["W_enc"].shape
        self.cfg = write_sae(root / name, architecture, **sizes, tensors=self.tensors, **changes)
        self.id = store_sae(bench.database, bench.store, root, name, name, hook=hook)
        self.name = f"sae:{name}"

    def check(self, sample: Sample, session: Any, hook: str, top: int) -> int:
        """Stored latents are the largest of the stored rows of the same tokens. Returns their number."""
        numbers, values = session[f"{self.name}.indices"][:], session[f"{self.name}.values"][:]
        for part in ("indices", "values"):
            assert np.array_equal(session.tokens_of(f"{self.name}.{part}"), session.tokens_of(hook))
        assert numbers.dtype == np.int32 and values.dtype == np.float32
        due = encoded(session[hook][:], self.tensors, self.cfg)
        assert numbers.shape == values.shape == (len(due), top)
        np.testing.assert_allclose(values, -np.sort(-due, axis=1)[:, :top], atol=1e-3, rtol=1e-4)
        assert ((numbers < 0) == (values == 0)).all()
        return len(due)


def run(
    bench: "Bench", rows: Sequence[dict[str, str]] | None = None, **changes: Any
) -> list[tuple[Sample, Any]]:
    """The samples of a job, each with its session."""
    job = bench.submit(list(rows) if rows else None, **changes)
    bench.drain().look()
    assert bench.status(job) is JobStatus.COMPLETED
    found = []
    for sample in bench.samples(job):
        assert sample.error is None, sample.error
        SessionReader(bench.store, str(sample.session_id)).verify()
        folder = bench.settings.home / "artifacts" / "sessions" / str(sample.session_id)
        found.append((sample, open_folder(folder)))
    return found


def test_latents_of_choices_conditions_and_positions(bench: "Bench", subtests: pytest.Subtests) -> None:
    saes = [Stored(bench), Stored(bench, "topk", "k")]
    wanted = [
        {"sae": saes[0].id, "hook": "resid_post.1", "top": 5},
        {"sae": saes[1].id, "hook": "resid_post.0"},
    ]
    wanted[1]["top"] = 9
    steered = [{"hook": "resid_post.0", "op": "scale", "coefficient": -2.0}]
    more: dict[str, Any] = {
        "all": {},
        "generated": {"positions": "generated"},
        "held back": {"positions": "generated[-3:]"},
        "last": {"positions": "last"},
        "numbers": {"positions": [0, 2, -1]},
        "prefill": {"mode": "prefill"},
        "float16": {"dtype": "float16", "features": {"first": 3}},
        "float8": {"dtype": "float8_e4m3fn", "features": {"first": 3}},
    }
    for name, changes in more.items():
        with subtests.test(name):
            capture = {"hooks": ["resid_post.0", "resid_post.1"], "saes": wanted} | changes
            conditions = [{"name": "plain"}, {"name": "steered", "interventions": steered}]
            inputs = [{"prompt": TEXT}, {"prompt": "The cat"}]
            found = run(bench, inputs=inputs, capture=capture, conditions=conditions, epochs=2)
            assert len(found) == 8
            for sample, session in found:
                if name in ("float16", "float8"):  # of the hooks alone
                    assert session["resid_post.1"].shape[1] == 3
                    assert session["sae:s.values"].stored_dtype == "F32"
                    continue
                for sae, one in zip(saes, wanted, strict=True):
                    assert sae.check(sample, session, one["hook"], one.get("top", D_SAE)) > 0


def test_latents_of_every_turn(bench: "Bench", subtests: pytest.Subtests) -> None:
    sae = Stored(bench, "jumprelu")
    for positions in ("all", "answer", "generated[-3:]", "last"):
        with subtests.test(positions):
            wanted = [{"sae": sae.id, "hook": "resid_post.1", "top": 4}]
            capture = {"hooks": ["resid_post.1"], "saes": wanted, "positions": positions}
            spec = {"task": TASK, "tools": "calculator", "sampling": {"max_tokens": 64}, "capture": capture}
            found = run(bench, additions((14, 23), (57, 68)), **spec)
            assert max(len(session._manifest().turns) for _, session in found) > 1
            for sample, session in found:
                sae.check(sample, session, "resid_post.1", 4)


def test_latents_alone_and_their_manifest(bench: "Bench") -> None:
    """The hook is the SAE's own; points of the last tokens alone have latents there alone."""
    sae = Stored(bench, hook="resid_post.1")
    last = Stored(bench, name="last", tensors=_of_logits(bench), hook="logits")
    wanted = [{"sae": sae.id, "top": 3}, {"sae": last.id, "top": 2}]
    ((sample, session),) = run(bench, inputs=[{"prompt": TEXT}], capture={"saes": wanted})
    assert set(session) == {"sae:s.indices", "sae:s.values", "sae:last.indices", "sae:last.values"}
    assert sample.prompt_tokens is not None and sample.generated_tokens is not None
    assert len(session["sae:s.values"]) == sample.prompt_tokens + sample.generated_tokens - 1
    assert session.tokens_of("sae:last.values")[0] == sample.prompt_tokens - 1
    manifest = SessionReader(bench.store, str(sample.session_id)).manifest
    applied = manifest.saes["sae:s"]
    assert (applied.id, applied.hook, applied.top, applied.config.d_sae) == (sae.id, "resid_post.1", 3, D_SAE)
    assert manifest.tensors["sae:s.indices"].latents == D_SAE
    assert manifest.locations["sae:s"].endswith("layers.1.output")
    with bench.database.read() as database:
        row = database.get(SaeRow, sae.id)
        assert row is not None and applied.sha256 == row.sha256


def _of_logits(bench: "Bench") -> dict[str, Any]:
    return sae_tensors(d_in=bench.engine.width_of("logits"), d_sae=D_SAE)


def test_a_planted_latent_fires_at_its_token_and_nowhere_else(bench: "Bench") -> None:
    embeddings = bench.engine.model.hf.get_input_embeddings().weight.detach().float().numpy()
    token = bench.tokenizer(TEXT)["input_ids"][-2]
    sae = Stored(
        bench,
        tensors=detector(embeddings, token),
        hook="embed",
        normalize_activations="constant_norm_rescale",
        apply_b_dec_to_input=False,
    )
    inputs = [{"prompt": TEXT}, {"prompt": "The cat"}, {"prompt": f"{TEXT} {TEXT}"}]
    fired = 0
    for _, session in run(bench, inputs=inputs, capture={"saes": [{"sae": sae.id, "top": 2}]}):
        numbers, values = session["sae:s.indices"][:], session["sae:s.values"][:]
        due = session.token_ids[: len(numbers)] == token
        assert np.array_equal(numbers[:, 0] == 3, due)
        assert (numbers[~due] == -1).all() and (values[~due] == 0).all()
        np.testing.assert_allclose(values[due, 0], 0.01, atol=1e-4)
        fired += int(due.sum())
    assert fired >= 3


def test_a_latent_steers_along_its_decoder_row(bench: "Bench", subtests: pytest.Subtests) -> None:
    plain = Stored(bench)
    scaled = Stored(bench, "topk", "k", rescale_acts_by_decoder_norm=True)
    for sae, op in ((plain, "add"), (scaled, "add"), (plain, "project_out")):
        with subtests.test(sae.name, op=op):
            row = sae.tensors["W_dec"][7]
            if sae is scaled:
                row = row / np.linalg.norm(row)
            edit: dict[str, Any] = {"hook": "resid_post.0", "op": op, "coefficient": 5}
            conditions = [
                {"name": "latent", "interventions": [edit | {"sae": sae.id, "latent": 7}]},
                {"name": "vector", "interventions": [edit | {"vector": row.tolist()}]},
                {"name": "another", "interventions": [edit | {"sae": sae.id, "latent": 8}]},
            ]
            capture = {"hooks": ["resid_post.1"]}
            found = run(bench, inputs=[{"prompt": TEXT}], capture=capture, conditions=conditions)
            latent, vector, another = (session["resid_post.1"][:] for _, session in found)
            np.testing.assert_allclose(latent, vector, atol=1e-4, rtol=1e-4)
            assert not np.allclose(latent[:5], another[:5], atol=1e-2)
            (applied,) = SessionReader(bench.store, str(found[0][0].session_id)).manifest.interventions
            assert (applied.sae, applied.latent, applied.op) == (sae.id, 7, op)


def test_an_sae_that_is_gone_or_damaged_fails_the_job_with_the_reason(bench: "Bench") -> None:
    sae = Stored(bench)
    spec = {"inputs": [{"prompt": "a"}], "capture": {"saes": [{"sae": sae.id, "hook": "resid_post.1"}]}}
    with bench.database.read() as session:
        row = session.get(SaeRow, sae.id)
        assert row is not None
        stored = session.get(FileRow, row.file_id)
        assert stored is not None
        path = bench.store.local_path(f"files/{stored.id}")
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    damaged = bench.submit(**spec)
    bench.drain().look()
    assert bench.status(damaged) is JobStatus.FAILED
    assert "its sha256 is not the recorded one" in _reason(bench, damaged)
    with bench.database.write() as session:
        session.delete(session.get(SaeRow, sae.id))
    gone = bench.submit(**spec)
    bench.drain().look()
    assert f"there is no SAE {sae.id}; it was deleted after the job was submitted" in _reason(bench, gone)


def _reason(bench: "Bench", job_id: str) -> str:
    with bench.database.read() as session:
        return str((jobs.get(session, job_id).error or {}).get("message"))
