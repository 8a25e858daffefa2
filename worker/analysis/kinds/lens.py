"""Kind `lens`: next tokens of residual rows, and contributions of components to a token's logit."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.lens.checkpoint import Checkpoint
from actograph.analysis.lens.logit_lens import attribution, logit_lens
from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import LensSpec
from storage.sessions.reader import SessionReader
from worker.analysis import checkpoints, lens_figures
from worker.analysis.context import Context, SourceJob
from worker.analysis.results import Results, figures, table
from worker.analysis.state import State

COMPONENTS = ("embed", "attn_out", "mlp_out")
#: the difference between the last residual row and the captured components
REST = "rest"
#: rows in one pass over the unembedding, and rows of the unembedding in memory
_ROWS, _BLOCK = 1024, 4096
#: about this many float64 copies of the components are in memory
_COPIES = 4

_SUMS = ("rows", "next_rows", "next_log_probability", "next_is_top", "agreement")
Array = NDArray[Any]


class JobLens:
    """Sums over the sessions of one job, and the lists of its first sessions."""

    def __init__(self, job: SourceJob, spec: LensSpec, checkpoint: Checkpoint) -> None:
        self.job, self.checkpoint = job, checkpoint
        self._spec = spec
        self.sums = {name: np.zeros(len(job.hooks)) for name in _SUMS}
        self.components = [] if spec.token is None else [*_components(job), REST]
        self._last = None if spec.token is None else _last_residual(job, checkpoint)
        self.shares = {name: np.zeros(len(self.components)) for name in ("sum", "magnitude")}
        self.attributed = np.zeros(1)
        #: columns of the lists: one entry for each row and hook, and for each attributed row
        self.tokens: dict[str, list[Array]] = {
            name: [] for name in ("session", "hook", "position", "input", "token", "logit", "log_probability")
        }
        self.contributions: dict[str, list[Array]] = {
            name: [] for name in ("session", "position", "token", "value")
        }

    def add(self, context: Context, reader: SessionReader, number: int) -> None:
        """Add one session. `number` is its place among the sessions of this job."""
        ids = np.asarray(reader.token_ids(), np.int64)
        following = np.append(ids[1:], -1)
        for positions, block in context.rows(reader, self.job.hooks):
            self._add_lens(context, number, (positions, ids[positions], following[positions]), block)
        if self._last is None:
            return
        for positions, block in context.rows(reader, [*self.components[:-1], self._last]):
            self._add_shares(context, number, positions, following[positions], block)

    def _add_lens(
        self, context: Context, number: int, tokens: tuple[Array, Array, Array], block: dict[str, Array]
    ) -> None:
        positions, inputs, following = tokens
        count, names = len(positions), self.job.hooks
        if len({block[name].shape[1] for name in names}) != 1:
            raise InvalidRequest("the hooks differ in width", param="points")
        stacked = np.concatenate([block[name] for name in names])
        targets = np.tile(following, len(names))
        found: list[tuple[Array, Array, Array, Array]] = []
        for start in range(0, len(stacked), _ROWS):
            part = slice(start, start + _ROWS)
            one = logit_lens(
                stacked[part], self.checkpoint, top=self._spec.top, targets=targets[part], block=_BLOCK
            )
            assert one.target_log_probabilities is not None
            found.append((one.tokens, one.logits, one.log_probabilities, one.target_log_probabilities))
            context.working()
        best, logits, logs, of_next = (
            np.concatenate(parts).reshape(len(names), count, -1) for parts in zip(*found, strict=True)
        )
        top, known = best[:, :, 0], following >= 0
        self.sums["rows"] += count
        self.sums["next_rows"] += known.sum()
        self.sums["next_log_probability"] += of_next[:, known, 0].sum(axis=1)
        self.sums["next_is_top"] += (top == following).sum(axis=1)
        self.sums["agreement"] += (top == top[-1]).sum(axis=1)
        if number >= self._spec.listed:
            return
        columns = {
            "session": np.full(len(stacked), number),
            "hook": np.repeat(np.arange(len(names)), count),
            "position": np.tile(positions, len(names)),
            "input": np.tile(inputs, len(names)),
            "token": best.reshape(len(stacked), -1),
            "logit": logits.reshape(len(stacked), -1),
            "log_probability": logs.reshape(len(stacked), -1),
        }
        _append(context, self.tokens, columns)

    def _add_shares(
        self, context: Context, number: int, positions: Array, following: Array, block: dict[str, Array]
    ) -> None:
        assert self._last is not None
        token, names = self._spec.token, self.components[:-1]
        chosen = following if token == "next" else np.full(len(positions), token)
        width = block[self._last].shape[1]
        step = max(1, context.memory_bytes // (8 * _COPIES * len(self.components) * width))
        kept = np.flatnonzero(chosen >= 0)
        for start in range(0, len(kept), step):
            rows = kept[start : start + step]
            parts = [block[name][rows].astype(np.float64) for name in names]
            if any(part.shape[1] != width for part in parts):
                raise InvalidRequest("the components differ in width from the residual stream")
            rest = block[self._last][rows].astype(np.float64) - np.sum(parts, axis=0)
            values = attribution(
                np.array([*parts, rest]), self.checkpoint, chosen[rows], against=self._spec.against
            )
            self.shares["sum"] += values.sum(axis=1)
            self.shares["magnitude"] += np.abs(values).sum(axis=1)
            self.attributed += len(rows)
            if number < self._spec.listed:
                columns = {
                    "session": np.full(len(rows), number),
                    "position": positions[rows],
                    "token": chosen[rows],
                    "value": values.T,
                }
                _append(context, self.contributions, columns)
            context.working()

    def state(self) -> State:
        """All sums and lists as arrays."""
        start = f"{self.job.id}|"
        sums = {**self.sums, **self.shares, "attributed": self.attributed}
        lists = {f"tokens|{name}": parts for name, parts in self.tokens.items()}
        lists |= {f"contributions|{name}": parts for name, parts in self.contributions.items()}
        return {start + name: array for name, array in sums.items()} | {
            start + name: np.concatenate(parts) for name, parts in lists.items() if parts
        }

    def restore(self, state: State) -> None:
        """Go on from a checkpoint."""
        start = f"{self.job.id}|"
        own = {key.removeprefix(start): array for key, array in state.items() if key.startswith(start)}
        for sums in (self.sums, self.shares):
            for name in sums:
                sums[name] = own.get(name, sums[name])
        self.attributed = own.get("attributed", self.attributed)
        for group, lists in (("tokens", self.tokens), ("contributions", self.contributions)):
            for name in lists:
                if (found := own.get(f"{group}|{name}")) is not None:
                    lists[name] = [found]

    def summary(self) -> dict[str, Any]:
        """The results of this job."""
        job, spec = self.job, self._spec
        found: dict[str, Any] = {
            "job_id": job.id,
            "model": job.model,
            "identity_sha256": job.identity_sha256,
            "weights_sha256": None if job.identity is None else job.identity.weights_sha256,
            "sessions": len(job.session_ids),
            "hooks": {
                name: {
                    "rows": int(self.sums["rows"][n]),
                    "next_rows": int(self.sums["next_rows"][n]),
                    "next_log_probability": _mean(
                        self.sums["next_log_probability"][n], self.sums["next_rows"][n]
                    ),
                    "next_is_top": _mean(self.sums["next_is_top"][n], self.sums["next_rows"][n]),
                    "agreement": _mean(self.sums["agreement"][n], self.sums["rows"][n]),
                }
                for n, name in enumerate(job.hooks)
            },
        }
        if spec.token is not None:
            rows = self.attributed[0]
            found["attribution"] = {
                "token": spec.token,
                "against": spec.against,
                "rows": int(rows),
                "components": {
                    name: {
                        "mean": _mean(self.shares["sum"][n], rows),
                        "mean_magnitude": _mean(self.shares["magnitude"][n], rows),
                    }
                    for n, name in enumerate(self.components)
                },
            }
        return found

    def token_lines(self) -> Iterable[list[Any]]:
        """Lines of lens.csv, one for each row, hook and rank."""
        columns, pieces = _joined(self.tokens), self.checkpoint.pieces
        if not columns:
            return
        # blocks of rows may have split a hook
        for n in np.lexsort((columns["position"], columns["hook"], columns["session"])):
            session = self.job.session_ids[columns["session"][n]]
            about = [self.job.id, session, self.job.hooks[columns["hook"][n]]]
            about += [int(columns["position"][n]), int(columns["input"][n])]
            for rank, token in enumerate(columns["token"][n].tolist()):
                numbers = [f"{columns[name][n, rank]:.6g}" for name in ("logit", "log_probability")]
                yield [*about, rank + 1, token, pieces.get(token, ""), *numbers]

    def contribution_lines(self) -> Iterable[list[Any]]:
        """Lines of attribution.csv, one for each row and component."""
        columns = _joined(self.contributions)
        for n, session in enumerate(columns.get("session", ())):
            about = [self.job.id, self.job.session_ids[session], int(columns["position"][n])]
            for name, value in zip(self.components, columns["value"][n], strict=True):
                yield [*about, int(columns["token"][n]), name, f"{value:.6g}"]

    def first_session(self) -> lens_figures.TokenGrid | None:
        """The top token of each hook and position of the first listed session."""
        columns = _joined(self.tokens)
        if not columns:
            return None
        first = columns["session"] == columns["session"][0]
        shape, pieces = (len(self.job.hooks), -1), self.checkpoint.pieces
        hook = np.argsort(columns["hook"][first], kind="stable")
        of = {name: columns[name][first][hook] for name in ("position", "token", "log_probability")}
        return lens_figures.TokenGrid(
            session_id=self.job.session_ids[columns["session"][0]],
            hooks=self.job.hooks,
            positions=of["position"].reshape(shape)[0],
            texts=[
                [pieces.get(token, str(token)) for token in row]
                for row in of["token"][:, 0].reshape(shape).tolist()
            ],
            probabilities=np.exp(of["log_probability"][:, 0].reshape(shape)),
        )


def run(context: Context) -> Results:
    """Read every session once, with the checkpoint of its job."""
    spec = context.spec
    assert isinstance(spec, LensSpec)
    parts = [JobLens(job, spec, checkpoints.of_job(job)) for job in context.jobs]
    state = context.resume()
    if state is not None:
        for part in parts:
            part.restore(state)
    for part in parts:
        place = {session_id: number for number, session_id in enumerate(part.job.session_ids)}
        for reader in context.sessions(part.job):
            part.add(context, reader, place[reader.session_id])
            context.finish(
                reader.session_id,
                lambda: {key: array for one in parts for key, array in one.state().items()},
            )
    found = [part.summary() for part in parts]
    head = ["job_id", "session_id", "hook", "position", "input", "rank", "token", "piece", "logit"]
    lines = (line for part in parts for line in part.token_lines())
    files = {"lens.csv": table([*head, "log_probability"], lines)}
    if spec.token is not None:
        head = ["job_id", "session_id", "position", "token", "component", "contribution"]
        lines = (line for part in parts for line in part.contribution_lines())
        files["attribution.csv"] = table(head, lines)
        files |= figures("attribution", lens_figures.attribution(found))
    files |= figures("lens", lens_figures.by_hook(found))
    grid = next((grid for part in parts if (grid := part.first_session()) is not None), None)
    if grid is not None:
        files |= figures("tokens", lens_figures.tokens(grid))
    return Results(summary={"kind": "lens", "jobs": found}, files=files)


def _components(job: SourceJob) -> list[str]:
    found = [name for name in job.captured if hooks.point_of(name) in COMPONENTS]
    if not found:
        raise InvalidRequest(
            f"job {job.id} has no component to attribute to; capture {', '.join(COMPONENTS)}", param="token"
        )
    return sorted(found, key=lambda name: (_layer(name), COMPONENTS.index(hooks.point_of(name))))


def _last_residual(job: SourceJob, checkpoint: Checkpoint) -> str:
    """Name of the residual stream before the final norm."""
    config = checkpoint.config
    layers = next(int(config[key]) for key in ("num_hidden_layers", "n_layer") if key in config)
    name = f"resid_post.{layers - 1}"
    if name not in job.captured:
        raise InvalidRequest(
            f"job {job.id} has no {name}, at whose scale contributions are taken", param="token"
        )
    return name


def _layer(name: str) -> int:
    layer = hooks.layer_of(name)
    return -1 if layer is None else layer


def _append(context: Context, lists: dict[str, list[Array]], columns: dict[str, Array]) -> None:
    """Add rows to a list, within the worker's memory."""
    held = sum(part.nbytes for parts in lists.values() for part in parts)
    held += sum(column.nbytes for column in columns.values())
    if held > context.memory_bytes:
        raise InvalidRequest(
            f"the listed rows take {held:,} bytes; ACTOGRAPH_ANALYSIS_MEMORY_BYTES is "
            f"{context.memory_bytes:,}: list fewer sessions, or choose rows",
            param="listed",
        )
    for name, column in columns.items():
        lists[name].append(column)


def _joined(lists: dict[str, list[Array]]) -> dict[str, Array]:
    return {name: np.concatenate(parts) for name, parts in lists.items() if parts}


def _mean(total: Any, count: Any) -> float | None:
    return float(total / count) if count else None
