"""Report of a run of `bench.chaos`, as a table and as JSON."""

from dataclasses import asdict, dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.marks import Mark
from tests.support.chaos.audit import Audit
from tests.support.chaos.faults import MARKS
from tests.support.chaos.stack import Outage

#: processes that the faults before killed are back after so long, also on a busy machine
QUIET_SECONDS = 15.0
#: of its rate before, at which a drain goes on without a broker, other faults beside it
LEAST_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault and what it cost."""

    kind: str
    at: float
    in_hand: int
    #: seconds to the next sample that ended, and to the end of all that were held
    progress_seconds: float
    recovery_seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    stack: str
    lease_seconds: float
    faults: list[Fault]
    audit: Audit
    jobs: int
    deleted_jobs: int
    #: what was drained while the broker was down
    outages: list[Outage]
    seconds: float
    #: longest time in the disturbed part in which no sample ended
    longest_silence_seconds: float
    #: samples that ran again although no victim held them
    repeated_beyond_hand: int
    #: stored sessions that the index does not know, not even as hidden
    unknown_sessions: int
    staging_leftovers: int
    left_by_reaper: int

    def is_clean(self) -> bool:
        left = self.repeated_beyond_hand + self.unknown_sessions + self.left_by_reaper
        return self.audit.is_clean() and not left


def summary(report: Report) -> dict[str, dict[str, float]]:
    """Per kind of fault: how many, and how long recovery took."""
    rows = {}
    for kind in dict.fromkeys(fault.kind for fault in report.faults):
        of_kind = [fault for fault in report.faults if fault.kind == kind]
        if of_kind:
            recovery = [fault.recovery_seconds for fault in of_kind]
            progress = [fault.progress_seconds for fault in of_kind]
            rows[kind] = {
                "count": len(of_kind),
                "in_hand_median": median(fault.in_hand for fault in of_kind),
                "progress_seconds_median": median(progress),
                "progress_seconds_max": max(progress),
                "recovery_seconds_median": median(recovery),
                "recovery_seconds_max": max(recovery),
            }
            if kind in MARKS:
                seconds = alone(report, kind)
                rows[kind]["mark_seconds"] = MARKS[kind](report.lease_seconds)
                rows[kind]["alone"] = len(seconds)
                rows[kind]["recovery_seconds_alone_max"] = max(seconds, default=0.0)
    return rows


def alone(report: Report, kind: str) -> list[float]:
    """Seconds to recovery after faults of a kind with no other fault shortly before, nor before its end."""
    found = []
    for fault in report.faults:
        begin, end = fault.at - QUIET_SECONDS, fault.at + fault.recovery_seconds
        if fault.kind == kind and not any(begin <= f.at <= end for f in report.faults if f is not fault):
            found.append(fault.recovery_seconds)
    return found


def marks(report: Report) -> list[Mark]:
    """Required results."""
    wrong = 0.0 if report.is_clean() else 1.0
    name = f"runs on {report.stack} with a sample lost, doubled or different, {len(report.faults)} faults"
    found = [Mark(name=name, measured=wrong, at_most=0.0)]
    if report.outages:
        name = f"slowest drain without a broker ÷ before, of {len(report.outages)}"
        share = min(outage.share for outage in report.outages)
        found.append(Mark(name=name, measured=share, at_least=LEAST_SHARE))
    for kind, mark in MARKS.items():
        if seconds := alone(report, kind):
            name = f"longest recovery after {kind}, seconds, of {len(seconds)} without other faults"
            found.append(Mark(name=name, measured=max(seconds), at_most=mark(report.lease_seconds)))
    return found


def show(report: Report) -> None:
    columns = ("fault", "count", "next result s", "max", "recovery s", "max", "alone max", "mark", "in hand")
    table = Table(*columns, title=f"Faults on {report.stack}")
    for kind, row in summary(report).items():
        table.add_row(
            kind,
            f"{row['count']:.0f}",
            f"{row['progress_seconds_median']:.2f}",
            f"{row['progress_seconds_max']:.2f}",
            f"{row['recovery_seconds_median']:.2f}",
            f"{row['recovery_seconds_max']:.2f}",
            f"{row['recovery_seconds_alone_max']:.2f}" if "mark_seconds" in row else "",
            f"{row['mark_seconds']:.0f}" if "mark_seconds" in row else "",
            f"{row['in_hand_median']:.0f}",
        )
    outcome = Table("", "", title="Outcome", show_header=False)
    outcome.add_row("faults, jobs, seconds", f"{len(report.faults)}, {report.jobs}, {report.seconds:.0f}")
    outcome.add_row("deleted jobs", f"{report.deleted_jobs}")
    for one in report.outages:
        rates = [count / one.seconds for count in (one.samples, one.samples_before)]
        said = f"{rates[0]:.1f}/s in {one.seconds:.0f} s, {rates[1]:.1f}/s in as many before"
        outcome.add_row("drained without a broker", said)
    outcome.add_row("longest silence seconds", f"{report.longest_silence_seconds:.1f}")
    for name, value in asdict(report.audit).items():
        if name != "examples":
            outcome.add_row(name.replace("_", " "), f"{value:,.6g}")
    for name in ("repeated_beyond_hand", "unknown_sessions", "staging_leftovers", "left_by_reaper"):
        outcome.add_row(name.replace("_", " "), f"{getattr(report, name):,}")
    Console().print(table, outcome, *report.audit.examples[:20])
