"""How often the readouts of a job fired, on right and on wrong answers."""

from collections import defaultdict
from statistics import fmean

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.readouts import ReadoutResults, ReadoutTotals, ReadoutValues
from actograph.contract.resources import SampleStatus
from storage.tables.models import JobRow, SampleRow, SessionRow

#: samples in memory at once
_PAGE = 1000
_VERDICTS = {True: "right", False: "wrong", None: "unscored"}


class _ReadoutSums:
    """Values of the samples with one verdict."""

    def __init__(self) -> None:
        self.fired = 0
        self.values: dict[str, list[float]] = defaultdict(list)

    def add(self, values: ReadoutValues, fires_above: float) -> None:
        self.fired += values.max > fires_above
        for name in ("max", "mean", "last"):
            self.values[name].append(getattr(values, name))

    def resource(self) -> ReadoutTotals:
        means = {name: fmean(values) for name, values in self.values.items()}
        return ReadoutTotals(samples=len(self.values["max"]), fired=self.fired, **means)


def of_job(session: Session, row: JobRow, fires_above: float) -> dict[str, dict[str, ReadoutResults]]:
    """Condition -> readout -> its values, by the verdicts of the samples. Call it in a `Database.snapshot`.

    The verdict of a sample is that of its session, or of its first scorer if the session was deleted.
    """
    if not (row.spec.get("capture") or {}).get("readouts"):
        return {}
    statement = (
        sa.select(SampleRow.condition, SampleRow.readouts, SampleRow.scores, SessionRow.correct)
        .join(SessionRow, SessionRow.id == SampleRow.session_id, isouter=True)
        .where(SampleRow.job_id == row.id, SampleRow.status == SampleStatus.COMPLETED)
        .order_by(SampleRow.position)
    )
    sums: dict[str, dict[str, dict[bool | None, _ReadoutSums]]] = {}
    for one in session.execute(statement, execution_options={"yield_per": _PAGE}):
        correct = one.correct
        first = next(iter((one.scores or {}).values()), None)
        if correct is None and first is not None:
            correct = first["value"] == 1.0
        for name, values in (one.readouts or {}).items():
            of_verdict = sums.setdefault(one.condition or row.kind, {}).setdefault(name, {})
            own = of_verdict.setdefault(correct, _ReadoutSums())
            own.add(ReadoutValues.model_validate(values), fires_above)
    return {
        condition: {
            name: ReadoutResults(
                fires_above=fires_above,
                **{_VERDICTS[verdict]: one.resource() for verdict, one in of_verdict.items()},
            )
            for name, of_verdict in readouts.items()
        }
        for condition, readouts in sums.items()
    }
