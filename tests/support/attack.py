"""Attack a running service and measure what its other clients notice.

    service = AttackedService(url, api_pid=pid, home=path, admin_key=key, model="demo")
    with service.under_attack() as attack, service.client("mallory") as mallory:
        mallory.post("/v1/estimate", ...)
    attack.require_withstood()

The memory limit is checked against the kernel's high-water mark of the resident memory (VmHWM), which misses
no peak. RLIMIT_AS would limit reserved addresses instead: thread stacks, malloc arenas and mapped libraries
count there although they take no memory. A limit of the kernel would also end the process and hide by how
much it went over.
"""

import json
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

#: what an API process may hold while it is attacked
MEMORY_BYTES = 512 << 20
#: other clients' median answer
MEDIAN_SECONDS = 0.5
#: other clients' slowest answer, on a machine that does other work too
WORST_SECONDS = 5.0
#: a client that waits misses the requests that it would have sent meanwhile: one each so many seconds
ARRIVAL_SECONDS = 0.1
#: measurements of each kind that a median needs
LEAST_ANSWERS = 5
#: for the answers that a median needs, after the attack
ANSWERS_SECONDS = 60.0
BYSTANDER = "bystander"
MAX_PAGE = 100


class NotWithstood(AssertionError):
    """The service failed its other clients."""


@dataclass
class Attack:
    """The measurements during one attack; complete when `under_attack` has ended."""

    #: kind of request -> seconds of each answer
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"list": [], "chat": []})
    #: the median of each kind before the attack
    undisturbed: dict[str, float] = field(default_factory=dict)
    #: failed requests of the bystander
    faults: list[str] = field(default_factory=list)
    peak_bytes: int = 0
    #: things of the bystander that changed or went away
    lost: list[str] = field(default_factory=list)
    is_restarted: bool = False

    def require_withstood(
        self,
        *,
        median_seconds: float = MEDIAN_SECONDS,
        worst_seconds: float = WORST_SECONDS,
        kinds: Collection[str] = ("list", "chat"),
    ) -> None:
        """Print the measurements and check them.

        If the machine is so busy that the median is above half the bound before the attack, the attack
        may double it. `kinds` of requests are those that the attack must not hold up.

        Raises:
            NotWithstood: with every fault.
        """
        print(f"\n{self}")
        faults = [*self.lost, *self.faults[:5]]
        if self.is_restarted:
            faults.append("the API process was restarted")
        if self.peak_bytes > MEMORY_BYTES:
            faults.append(f"the API process held {self.peak_bytes >> 20} MiB, not {MEMORY_BYTES >> 20}")
        for kind, seconds in self.seconds.items():
            if kind not in kinds:
                continue
            if len(seconds) < LEAST_ANSWERS:
                faults.append(f"{kind}: {len(seconds)} answers are too few for a median")
            elif (median := self.median(kind)) >= max(median_seconds, 2 * self.undisturbed[kind]):
                faults.append(f"{kind}: a median of {median:.2f} s, {self.undisturbed[kind]:.2f} s before")
            if max(seconds, default=0.0) >= worst_seconds:
                faults.append(f"{kind}: one answer took {max(seconds):.2f} s")
        if faults:
            raise NotWithstood("; ".join(faults))

    def median(self, kind: str) -> float:
        """The median wait of clients that arrive at regular times, whether or not the service is frozen."""
        waits: list[float] = []
        for seconds in self.seconds[kind]:
            missed = int(seconds / ARRIVAL_SECONDS)
            waits += [seconds - number * ARRIVAL_SECONDS for number in range(missed + 1)]
        return statistics.median(waits)

    def __str__(self) -> str:
        parts = []
        for kind, seconds in self.seconds.items():
            if seconds:
                medians = f"median {self.median(kind):.3f} s ({self.undisturbed[kind]:.3f} s before)"
                parts.append(f"{kind}: {medians}, worst {max(seconds):.3f} s of {len(seconds)}")
        return "; ".join([*parts, f"peak {self.peak_bytes >> 20} MiB"])


class AttackedService:
    """A running service with keys of several owners. Works on any service that has keys and holds a model."""

    def __init__(self, url: str, *, api_pid: int, home: Path, admin_key: str, model: str) -> None:
        self.url = url
        self.api_pid = api_pid
        self.home = home
        self._model = model
        self._admin_key = admin_key
        self._keys: dict[tuple[str, str], str] = {}

    def log(self) -> str:
        """The API's log."""
        return (self.home / "logs" / "api.log").read_text()

    def key(self, owner: str, role: str = "submit") -> str:
        """A key of this owner, the same one each time."""
        if (owner, role) not in self._keys:
            with self._client(self._admin_key) as admin:
                answer = admin.post(
                    "/v1/keys", json={"name": f"{owner} {role}", "role": role, "owner": owner}
                )
            self._keys[owner, role] = answer.raise_for_status().json()["key"]
        return self._keys[owner, role]

    def client(self, owner: str, role: str = "submit") -> httpx.Client:
        """A client that sends a key of this owner."""
        return self._client(self.key(owner, role))

    @cached_property
    def admin(self) -> httpx.Client:
        return self._client(self._admin_key)

    def _client(self, key: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        limits = httpx.Limits(max_connections=None)
        return httpx.Client(base_url=self.url, headers=headers, timeout=120, trust_env=False, limits=limits)

    @contextmanager
    def under_attack(self, least_seconds: float = 2.0) -> Iterator[Attack]:
        """Measure another client while the block runs, for at least so long."""
        self._seed()
        before = self._held()
        with _Bystander(self.url, self.key(BYSTANDER), self._model) as bystander:
            bystander.await_answers(LEAST_ANSWERS, 0.0)
            # the kernel begins its high-water mark anew, see proc(5)
            Path(f"/proc/{self.api_pid}/clear_refs").write_text("5")
            attack, began = Attack(), time.time()
            for kind in attack.seconds:
                before_attack = [line["seconds"] for line in bystander.since(0.0) if line["kind"] == kind]
                attack.undisturbed[kind] = statistics.median(before_attack[1:])
            yield attack
            time.sleep(max(0.0, began + least_seconds - time.time()))
            bystander.await_answers(LEAST_ANSWERS, began)
            bystander.stop()
        for line in bystander.since(began):
            if line["fault"]:
                attack.faults.append(f"{line['kind']}: {line['fault']}")
            attack.seconds[line["kind"]].append(line["seconds"])
        attack.peak_bytes = self._peak_bytes()
        attack.is_restarted = attack.peak_bytes == 0
        after = self._held()
        attack.lost += [f"lost: {name}" for name in before if after.get(name) != before[name]]

    def _peak_bytes(self) -> int:
        """The most memory since the mark was begun anew; 0 if the process has ended."""
        try:
            status = Path(f"/proc/{self.api_pid}/status").read_text()
        except FileNotFoundError:
            return 0
        line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
        return int(line.split()[1]) << 10

    def _seed(self) -> None:
        """Give the bystander a completed job with a session, and a file."""
        with self.client(BYSTANDER) as client:
            if client.get("/v1/files").raise_for_status().json()["data"]:
                return
            rows = b'{"question": "What is 2 + 2?", "answer": "#### 4"}\n'
            client.post("/v1/files", files={"file": ("rows.jsonl", rows)}).raise_for_status()
            chat = {
                "model": self._model,
                "messages": [{"role": "user", "content": "What is 2 + 2?"}],
                "max_tokens": 4,
                "capture": {"points": ["resid_post"]},
            }
            client.post("/v1/chat/completions", json=chat).raise_for_status()

    def _held(self) -> dict[str, str]:
        """Digests of all that the bystander has and that must stay as it is."""
        found: dict[str, str] = {}
        with self.client(BYSTANDER) as client:
            for file in client.get("/v1/files").raise_for_status().json()["data"]:
                content = client.get(f"/v1/files/{file['id']}/content").raise_for_status().content
                found[f"file {file['id']}"] = sha256(content).hexdigest()
            sessions = client.get(f"/v1/activations/sessions?limit={MAX_PAGE}").raise_for_status().json()
            for session in sessions["data"]:
                address = f"/v1/activations/sessions/{session['id']}"
                manifest = client.get(f"{address}/manifest").raise_for_status()
                found[f"session {session['id']}"] = sha256(manifest.content).hexdigest()
                for name in [file["name"] for file in manifest.json()["files"]]:
                    part = client.get(f"{address}/files/{name}", follow_redirects=True).raise_for_status()
                    found[f"file {name} of {session['id']}"] = sha256(part.content).hexdigest()
                job = client.get(f"/v1/jobs/{session['job_id']}").raise_for_status().json()
                found[f"job {job['id']}"] = job["status"]
        return found


class _Bystander:
    """`tests.support.bystander` as a process, and the lines that it has written."""

    def __init__(self, url: str, key: str, model: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.bystander", url, key, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "_Bystander":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                self._lines.append(json.loads(line))

    def since(self, moment: float) -> list[dict[str, Any]]:
        """The answers that came after this moment."""
        return [line for line in list(self._lines) if line["began"] + line["seconds"] >= moment]

    def await_answers(self, count: int, moment: float) -> None:
        """Wait until so many answers of each kind have come after this moment."""
        deadline = time.monotonic() + ANSWERS_SECONDS
        while time.monotonic() < deadline:
            kinds = Counter(line["kind"] for line in self.since(moment))
            if min(kinds["list"], kinds["chat"]) >= count:
                return
            time.sleep(0.05)

    def stop(self) -> None:
        """Let requests that wait be answered."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
