"""A short run of the chaos program on both stacks: nothing is lost, doubled or different."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from actograph.contract.base import ErrorRecord
from actograph.contract.errors import WorkerLost
from actograph.contract.resources import JobStatus, SampleStatus
from storage import samples
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import view
from storage.tables.models import JobRow
from tests.support.chaos.audit import Audit, audit_job
from tests.support.chaos.faults import FAULTS
from tests.support.stored_files import stored_path

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

REPO = Path(__file__).resolve().parents[3]
#: a job is to last longer than a reload of the model, which is to find samples that run afterwards
PROBLEMS = {"sqlite-files": 240, "postgres-s3": 240}
#: two minutes on a quiet machine
LIMIT_SECONDS = 600


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.skipif(sys.platform != "linux", reason="children are killed with their parents by Linux's means")
@pytest.mark.parametrize("stack", ["sqlite-files", "postgres-s3"])
def test_every_kind_of_fault_in_mid_drain_changes_nothing(
    request: pytest.FixtureRequest, shared: Path, tmp_path: Path, stack: str
) -> None:
    if stack == "postgres-s3":  # say by their own means where this machine has no such server
        request.getfixturevalue("postgres_server"), request.getfixturevalue("s3_server")
    kinds, problems = FAULTS[stack], PROBLEMS[stack]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.chaos", "--stack", stack),
            *("--model", shared / "models" / "tiny-qwen3", "--max-tokens", "32"),
            *("--problems", shared / "data" / "gsm8k" / "test.jsonl", "--limit", str(problems)),
            *("--faults", str(len(kinds)), "--seed", "19", "--home", tmp_path / "home"),
            *("--broker-down", "6", "--json", tmp_path / "chaos.json"),
        ],
        cwd=REPO,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    logs = "\n".join(f"== {p.name}\n{p.read_text()[-2000:]}" for p in (tmp_path / "home/logs").glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    report = json.loads((tmp_path / "chaos.json").read_text())
    assert report["clean"]
    assert set(report["by_kind"]) == set(kinds)
    audit = report["audit"]
    assert audit["samples"] == audit["sessions"] == report["jobs"] * problems
    assert (audit["mixed_identity"], audit["undeleted"], report["deleted_jobs"] > 0) == (0, 0, True)
    assert all(outage["samples"] > 0 for outage in report["outages"]) and report["outages"]
    # work was really lost with the workers, and no more of it than they held
    assert 0 < audit["repeats"] <= sum(fault["in_hand"] for fault in report["faults"])
    workers = "".join(p.read_text() for p in (tmp_path / "home/logs").glob("worker-*.log"))
    assert "No space left on device" in workers
    if stack == "postgres-s3":
        assert "the database is unavailable" in workers
    else:
        check_that_the_audit_sees(tmp_path / "home", problems)


def check_that_the_audit_sees(home: Path, problems: int) -> None:
    """What the run was spared, done to its results by hand."""
    database, store = (
        Database(f"sqlite:///{home / 'actograph.db'}"),
        open_store((home / "artifacts").as_uri()),
    )
    with database.read() as session:
        # greedy, sampled, and the same again under fire
        evaluations = sa.select(JobRow.id).where(JobRow.kind == "evaluation")
        ids = session.scalars(evaluations.order_by(JobRow.created_at)).all()
        reference, again = (
            [samples.resource(row) for row in samples.find(session, job_id, limit=problems)[0]]
            for job_id in (ids[0], ids[2])
        )
        job = view.job(session, jobs.get(session, ids[2]))
    damaged = stored_path(store, f"sessions/{again[0].session_id}/activations.safetensors")
    with damaged.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    again[1] = again[1].model_copy(update={"session_id": again[2].session_id})
    again[3] = again[3].model_copy(update={"completion": "something else"})
    again[4] = again[4].model_copy(update={"scores": {}})
    killed = ErrorRecord(type=WorkerLost.code, message="killed four times", details=None)
    again[7] = again[7].model_copy(update={"status": SampleStatus.FAILED, "error": killed})
    other = stored_path(store, f"sessions/{again[6].session_id}/manifest.json")
    said = json.loads(other.read_text())
    other.chmod(0o600)
    other.write_text(json.dumps(said | {"identity_sha256": "0" * 64}))
    audit = Audit()
    audit_job(
        audit,
        job=job.model_copy(update={"status": JobStatus.IN_PROGRESS}),
        samples=[*again[:-1], again[5]],
        expected=reference,
        database=database,
        store=store,
    )
    database.close()
    assert not audit.is_clean()
    assert (audit.unreadable, audit.different_token_ids) == (1, 1)
    assert (audit.different_texts, audit.different_scores) == (1, 1)
    assert audit.mixed_identity == 1
    # one is missing, one is there twice, and the job counts more than have completed
    assert (audit.lost, audit.given_up, audit.duplicated, audit.unfinished_jobs) == (1, 1, 3, 1)
