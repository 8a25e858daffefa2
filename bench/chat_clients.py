"""64 chat clients at once, with capture: right answers, flat memory, speed, and the ends of what is kept.

    python -m bench.chat_clients --model DIR [--chats 6000] [--json FILE]

`actograph up` serves the model. Clients of the openai package ask again as soon as they were answered,
every other request as a stream, each capturing one hook of every token. Each answer is compared with the
token ids of its session. While they ask, the memory, file handles and threads of every process are read;
chats and sessions are kept for so short a time that the index and the store must not grow either.

Beside it, in turn, `transformers serve` answers the same questions without capture. The rounds alternate;
throughput and the servers' CPU time are per round.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from actograph.demo import MODEL_DIR
from actograph.stack.up import up_process
from bench import chat_load
from bench.chat_load import Answers, Load, TokenCheck
from bench.marks import Mark, median_and_quartiles, print_marks, write_result
from bench.process_watch import ProcessWatch, growth, service_processes
from bench.transformers_serve import serving
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.sessions.reader import SessionReader
from storage.tables.models import JobRow

CLIENTS = 64
#: chats and sessions are removed after so long
KEEP_SECONDS = 30
CAPTURE = {"points": ["resid_post"], "layers": [0]}
#: of the chats; what is taken once is left out of the growth
WARM_UP_SHARE = 0.3
#: a process may grow by so much of what it holds, and a small one by so many MiB
GROWTH_SHARE, LEAST_GROWTH_MIB = 0.05, 2.0
#: of what is kept, so long after the last chat
PATIENCE_SECONDS = 120.0
OURS, PLAIN, BATCHED = "actograph, capturing", "transformers serve", "the same, --continuous-batching"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed; nan of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


class Side:
    """One server, and what its rounds came to."""

    def __init__(
        self, name: str, load: Callable[[int, int, int], Load], processes: Sequence[psutil.Process]
    ) -> None:
        """`load` takes clients, chats and the first chat's number."""
        self.name = name
        self._load = load
        self._processes = processes
        self._next = 0
        self.found = Answers()
        self.rounds: list[dict[str, float]] = []
        self.errors: dict[str, int] = {}

    def ask(self, clients: int, chats: int) -> dict[str, float]:
        """One round; its figures are kept where all clients took part."""
        before, known = cpu_seconds(self._processes), self.found.done
        errors = sum(self.found.errors.values())
        chat_load.run(self._load(clients, chats, self._next), into=self.found)
        self._next += chats
        new = self.found.answers[known:]
        first = [a.first_text_seconds for a in new if a.first_text_seconds is not None]
        return {
            "chats": len(new),
            "failed": sum(self.found.errors.values()) - errors,
            "chats_per_second": len(new) / self.found.wall_seconds,
            "tokens_per_second": sum(a.completion_tokens for a in new) / self.found.wall_seconds,
            "latency_p50_s": percentile([a.seconds for a in new], 0.5),
            "latency_p99_s": percentile([a.seconds for a in new], 0.99),
            "first_text_p50_s": percentile(first, 0.5),
            "first_text_p99_s": percentile(first, 0.99),
            "cpu_ms_per_chat": 1e3 * (cpu_seconds(self._processes) - before) / max(1, len(new)),
        }


def compare(sides: Sequence[Side], arguments: argparse.Namespace) -> dict[str, Any]:
    """Rounds of all sides in turn: one client first, then all of them."""
    alone = {side.name: side.ask(1, arguments.alone) for side in sides}
    for number in range(arguments.rounds):
        for side in sides:
            chats = arguments.chats if side.name == OURS else arguments.baseline_chats
            side.rounds.append(side.ask(CLIENTS, chats // arguments.rounds))
            shown = {key: round(value, 2) for key, value in side.rounds[-1].items()}
            print(f"round {number + 1}, {side.name}: {shown}", flush=True)
    return {
        side.name: {
            "one_client": alone[side.name],
            "clients": CLIENTS,
            "rounds": side.rounds,
            "errors": side.found.errors,
            "together_to_alone": [
                r["chats_per_second"] / alone[side.name]["chats_per_second"] for r in side.rounds
            ],
        }
        for side in sides
    }


def left_over(database: Database) -> int:
    """Chats in the index once their time is over."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := jobs_in(database)) and time.monotonic() < deadline:
        time.sleep(1)
    return left


def jobs_in(database: Database) -> int:
    with database.read() as session:
        return int(session.execute(sa.select(sa.func.count()).select_from(JobRow)).scalar_one())


def sizes(home: Path, database: Database) -> dict[str, int]:
    """Current sizes of index, store and logs."""
    stored = home / "artifacts" / "sessions"
    return {
        "chats_in_the_index": jobs_in(database),
        "index_bytes": sum(p.stat().st_size for p in home.glob("actograph.db*")),
        "sessions_in_the_store": len(list(stored.iterdir())) if stored.is_dir() else 0,
        "log_bytes": sum(p.stat().st_size for p in (home / "logs").iterdir()),
    }


def measure(arguments: argparse.Namespace, scratch: Path) -> tuple[dict[str, Any], list[Mark]]:
    home = scratch / "home"
    options = [f"--model=bench={arguments.model}", f"--home={home}", "--port=0"]
    options += [f"--threads={arguments.threads}"]
    environment = {**os.environ, "ACTOGRAPH_CHAT_RETENTION_SECONDS": str(KEEP_SECONDS)}
    environment["OMP_NUM_THREADS"] = str(arguments.threads)
    tokenizer: Any = AutoTokenizer.from_pretrained(arguments.model)
    with up_process(options, environment) as url, ExitStack() as others:
        store = open_store((home / "artifacts").as_uri())
        database = Database(f"sqlite:///{home / 'actograph.db'}")
        others.callback(database.close)
        check = TokenCheck(
            lambda session_id: list(SessionReader(store, session_id).token_ids()),
            lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)).replace("\0", "\ufffd"),
        )
        extra = {"capture": CAPTURE, "expires_after": {"seconds": KEEP_SECONDS}}

        def ours(clients: int, chats: int, first: int) -> Load:
            asked: dict[str, Any] = {"url": url, "model": "bench", "extra": extra, "check": check}
            return Load(clients=clients, chats=chats, first=first, **asked)

        processes = service_processes()
        side = Side(OURS, ours, list(processes.values()))
        sides = [side, *_baselines(arguments, scratch, others)]
        kept = [sizes(home, database)]
        with ProcessWatch(processes, lambda: side.found.done) as watch:
            speed = compare(sides, arguments)
            kept.append(sizes(home, database))
        left = left_over(database)
        kept.append(sizes(home, database))
        warm_up = int(WARM_UP_SHARE * side.found.done)
        memory = {role: growth(readings, warm_up=warm_up) for role, readings in watch.readings.items()}
    result = {
        "model": arguments.model.name,
        "threads": arguments.threads,
        "speed": speed,
        "checked_by_token_ids": check.checked,
        "mixed": check.mixed[:10],
        "memory": memory,
        "kept": kept,
    }
    return result, _marks(result, side, len(check.mixed), left)


def _baselines(arguments: argparse.Namespace, scratch: Path, others: ExitStack) -> Iterator[Side]:
    wanted = [(PLAIN, False)] if arguments.baseline_chats else []
    wanted += [(BATCHED, True)] if arguments.batched else []
    for name, batches in wanted:
        log = scratch / f"transformers-{int(batches)}.log"
        url, process = others.enter_context(serving(arguments.model, log, batches=batches))

        def load(clients: int, chats: int, first: int, url: str = url) -> Load:
            asked: dict[str, Any] = {"url": url, "model": str(arguments.model), "extra": {}}
            return Load(clients=clients, chats=chats, first=first, **asked)

        yield Side(name, load, [process])


def _marks(result: dict[str, Any], side: Side, mixed: int, left: int) -> list[Mark]:
    speed = result["speed"]
    failed = sum(side.found.errors.values())
    marks = [
        Mark(name="chats that were not answered", measured=failed, at_most=0),
        Mark(name="answers whose session holds other tokens", measured=mixed, at_most=0),
        Mark(name="chats left in the index after their time", measured=left, at_most=0),
    ]
    for role, grown in result["memory"].items():
        marks += [
            Mark(
                name=f"MiB more after the chats, {role}",
                measured=grown["rss_mib_end"] - grown["rss_mib_start"],
                at_most=max(LEAST_GROWTH_MIB, GROWTH_SHARE * grown["rss_mib_start"]),
            ),
            Mark(
                name=f"file handles more, {role}",
                measured=grown["handles_end"] - grown["handles_start"],
                at_most=8,
            ),
        ]
    for other in [name for name in speed if name != OURS]:
        ratios = [
            mine["chats_per_second"] / theirs["chats_per_second"]
            for mine, theirs in zip(speed[OURS]["rounds"], speed[other]["rounds"], strict=True)
        ]
        middle, quartiles = median_and_quartiles(ratios) if len(ratios) > 1 else (ratios[0], None)
        marks.append(
            Mark(
                name=f"chats a second, capturing, / {other}, not capturing",
                measured=middle,
                at_least=1.0,
                quartiles=quartiles,
            )
        )
    return marks


def _show(result: dict[str, Any]) -> None:
    speed = Table("64 clients, median round", *result["speed"])
    for key in next(iter(result["speed"].values()))["one_client"]:
        row = [percentile([r[key] for r in side["rounds"]], 0.5) for side in result["speed"].values()]
        speed.add_row(key, *(f"{value:,.2f}" for value in row))
    memory = Table("process", *next(iter(result["memory"].values())))
    for role, grown in result["memory"].items():
        memory.add_row(role, *(f"{value:,.1f}" for value in grown.values()))
    Console(width=None if sys.stdout.isatty() else 180).print(speed, memory)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="model folder; the demo's own")
    parser.add_argument("--chats", type=int, default=6000, help="of 64 clients, in all rounds")
    parser.add_argument("--alone", type=int, default=50, help="chats of the one client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--baseline-chats", type=int, default=384, help="of `transformers serve`; 0 leaves it out"
    )
    parser.add_argument(
        "--batched",
        action="store_true",
        help="also with --continuous-batching, on a CPU seconds a chat",
    )
    parser.add_argument("--threads", type=int, default=2, help="of torch, on both sides")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    arguments.model = arguments.model.resolve()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    with tempfile.TemporaryDirectory(prefix="actograph-chats-") as scratch:
        result, marks = measure(arguments, Path(scratch))
    _show(result)
    print_marks(marks)
    write_result(arguments.json, result, marks)
    return 0 if all(mark.met for mark in marks) else 1


if __name__ == "__main__":
    sys.exit(main())
