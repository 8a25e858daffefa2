"""The logit lens on stored residual rows, and contributions of components to a token's logit, in one pass.

Stored logits of the model are compared with the lens of the last layer first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.analyses import NEXT, LensGrid, LensResult, LensSpec
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.hooks import matching
from actograph.contract.models import ServedModel
from actograph.dtypes import DTYPES
from storage.analyses import queries
from storage.artifacts.store import ArtifactStore
from storage.results.matrix import SessionSource
from storage.sessions import selected_rows
from storage.sessions.reader import SessionReader
from worker.analysis import model_files
from worker.analysis.blocks import AlignedRows
from worker.analysis.model_end import ModelEnd
from worker.analysis.one_pass import Pass
from worker.analysis.run import AnalysisResults, AnalysisRun, Arrays, left_out

#: rows in one pass over the unembedding, and rows of the unembedding in memory
_ROWS, _VOCABULARY = 1024, 4096
#: bytes of all components of the rows that are attributed at once
_COMPONENT_BYTES = 32 << 20
#: positions of the grid, which must fit a figure
GRID_POSITIONS = 32
#: part of the logit that depends on no row
BIAS = "bias"
LOGITS = "logits"
#: rows whose stored logits are compared, and the largest difference as a share of the largest logit, in
#: float32 and in shorter dtypes
_COMPARED, _EXACT, _ROUNDED = 8, 1e-3, 2**-5
_OF_HOOKS = ("rows", "next_rows", "next_log_probability", "next_is_top", "agreement")
Array = NDArray[Any]


class LensSums:
    """Sums over rows of each hook and component, and the listed rows."""

    def __init__(
        self,
        spec: LensSpec,
        model: ModelEnd,
        hooks: Sequence[str],
        stream: Sequence[str],
        check: Callable[[], None],
        *,
        tokens: tuple[int | str | None, int | None] = (None, None),
    ) -> None:
        """
        Args:
            tokens: id of the token whose logit is attributed, or `next`, and of the one to compare it with.
            model: end of the model that the sessions were recorded with.
            stream: stored points of the residual stream; empty for no attribution.
            check: called often; raises if the analysis must end.
        """
        self._spec, self._model, self._check = spec, model, check
        self._token, self._against = tokens
        self.hooks, self._stream = list(hooks), list(stream)
        self.components = [*queries.component_names(stream), BIAS] if stream else []
        self._sums = {name: np.zeros(len(self.hooks)) for name in _OF_HOOKS}
        self._sums |= {name: np.zeros(len(self.components)) for name in ("value", "magnitude")}
        self._sums["attributed"] = np.zeros(1)
        #: columns of the listed rows, in pieces
        self._listed: dict[str, list[Array]] = {}

    def add(self, block: AlignedRows) -> None:
        """Add rows of every hook at the same tokens."""
        positions = np.asarray(block.tokens)
        following = np.append(block.token_ids, -1)[positions + 1]
        self._read(block, positions, following)
        if self._stream:
            self._attribute(block, positions, following)

    def _read(self, block: AlignedRows, positions: Array, following: Array) -> None:
        count, hooks = len(positions), len(self.hooks)
        rows = np.concatenate([block.rows[hook] for hook in self.hooks])
        targets, pieces = np.tile(following, hooks), []
        for start in range(0, len(rows), _ROWS):
            self._check()
            part = slice(start, start + _ROWS)
            one = self._model.ask(
                "lens", rows[part], top=self._spec.top, targets=targets[part], block=_VOCABULARY
            )
            pieces.append((one.tokens, one.logits, one.log_probabilities, one.target_log_probabilities))
        best, logits, logs, of_next = (
            np.concatenate(parts).reshape(hooks, count, -1) for parts in zip(*pieces, strict=True)
        )
        listed = self._room("rows", count)
        columns = {"token": best, "logit": logits, "log_probability": logs}
        self._list("row", {name: array[:, :listed].swapaxes(0, 1) for name, array in columns.items()})
        self._list("row", self._origins(block, listed))
        known, first = following >= 0, best[:, :, 0]
        self._sums["rows"] += count
        self._sums["next_rows"] += known.sum()
        self._sums["next_log_probability"] += of_next[:, known, 0].sum(axis=1)
        self._sums["next_is_top"] += (first == following).sum(axis=1)
        self._sums["agreement"] += (first == first[-1]).sum(axis=1)

    def _attribute(self, block: AlignedRows, positions: Array, following: Array) -> None:
        token = self._token
        chosen = following if token == NEXT else np.full(len(positions), token)
        step = max(1, _COMPONENT_BYTES // (8 * len(self.components) * self._model.width))
        kept = np.flatnonzero(chosen >= 0)
        for start in range(0, len(kept), step):
            self._check()
            rows = kept[start : start + step]
            points = np.array([block.rows[name][rows] for name in self._stream], np.float64)
            parts = np.diff(points, axis=0, prepend=0)
            of_token: dict[str, Any] = {"token": chosen[rows], "against": self._against}
            values = np.vstack(
                [
                    self._model.ask("attribution", parts, **of_token),
                    self._model.ask("constant", **of_token),
                ]
            )
            listed = rows[: self._room("attributed", len(rows))]
            columns = {"token": chosen[listed], "value": values[:, : len(listed)].T}
            self._list("part", columns | self._origins(block, listed))
            self._sums["value"] += values.sum(axis=1)
            self._sums["magnitude"] += np.abs(values).sum(axis=1)
            self._sums["attributed"] += len(rows)

    def _room(self, counted: str, count: int) -> int:
        """How many of the next rows are listed, by those that were counted before."""
        return min(count, max(0, self._spec.listed - int(self._sums[counted][0])))

    @staticmethod
    def _origins(block: AlignedRows, rows: int | Array) -> dict[str, Array]:
        positions = np.asarray(block.tokens)[np.arange(rows) if isinstance(rows, int) else rows]
        ids = np.asarray(block.token_ids)[positions]
        return {"session": np.full(len(positions), block.session), "position": positions, "input": ids}

    def _list(self, kind: str, columns: Mapping[str, Array]) -> None:
        for name, column in columns.items():
            if len(column):
                self._listed.setdefault(f"{kind}/{name}", []).append(column)

    def arrays(self) -> dict[str, Any]:
        """The sums and listed rows as arrays, for `restore`."""
        listed = {f"listed/{name}": np.concatenate(pieces) for name, pieces in self._listed.items()}
        return {f"sum/{name}": array for name, array in self._sums.items()} | listed

    def restore(self, saved: Arrays) -> None:
        """Continue from saved sums of the same hooks."""
        self._sums = {name: saved[f"sum/{name}"] for name in self._sums}
        self._listed = {
            name.removeprefix("listed/"): [saved[name]] for name in saved if name.startswith("listed/")
        }

    def of_hooks(self) -> dict[str, dict[str, Any]]:
        """The numbers of each hook."""
        sums = self._sums
        over = {"next_log_probability": "next_rows", "next_is_top": "next_rows", "agreement": "rows"}
        return {
            hook: {"rows": int(sums["rows"][place])}
            | {name: _mean(sums[name][place], sums[count][place]) for name, count in over.items()}
            for place, hook in enumerate(self.hooks)
        }

    def attribution(self) -> list[dict[str, Any]]:
        """The contribution of each component."""
        count = self._sums["attributed"][0]
        return [
            {
                "component": name,
                "mean": _mean(self._sums["value"][place], count),
                "mean_magnitude": _mean(self._sums["magnitude"][place], count),
            }
            for place, name in enumerate(self.components)
        ]

    def lines(self, ids: Sequence[str], text_of: Callable[[int], str]) -> Iterator[dict[str, Any]]:
        """A line for each listed row, hook and rank."""
        for origin, columns in self._rows("row", ids):
            for place, hook in enumerate(self.hooks):
                for rank, token in enumerate(columns["token"][place].tolist()):
                    numbers = {
                        name: float(columns[name][place, rank]) for name in ("logit", "log_probability")
                    }
                    yield (
                        origin
                        | {"hook": hook, "rank": rank + 1, "token": token, "text": text_of(token)}
                        | numbers
                    )

    def grid(self, ids: Sequence[str], text_of: Callable[[int], str]) -> LensGrid | None:
        """The tokens on top at the first listed rows of the first session; None if no row is listed."""
        rows = [(origin, columns) for origin, columns in islice(self._rows("row", ids), GRID_POSITIONS)]
        rows = [one for one in rows if one[0]["session_id"] == rows[0][0]["session_id"]]
        if not rows:
            return None

        def text(token: int) -> str:
            return text_of(token) or str(token)

        return LensGrid(
            session_id=rows[0][0]["session_id"],
            positions=[origin["position"] for origin, _ in rows],
            inputs=[text(origin["input"]) for origin, _ in rows],
            tokens={
                hook: [text(int(columns["token"][place, 0])) for _, columns in rows]
                for place, hook in enumerate(self.hooks)
            },
            probabilities={
                hook: [float(np.exp(columns["log_probability"][place, 0])) for _, columns in rows]
                for place, hook in enumerate(self.hooks)
            },
        )

    def contributions(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """A line for each listed row and component."""
        for origin, columns in self._rows("part", ids):
            for name, value in zip(self.components, columns["value"].tolist(), strict=True):
                yield origin | {"token": int(columns["token"]), "component": name, "contribution": value}

    def _rows(self, kind: str, ids: Sequence[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Origin and columns of each listed row."""
        columns = {
            name.removeprefix(f"{kind}/"): np.concatenate(pieces)
            for name, pieces in self._listed.items()
            if name.startswith(f"{kind}/")
        }
        for row, session in enumerate(columns.get("session", ())):
            origin = {"session_id": ids[session]}
            yield (
                origin | {name: int(columns[name][row]) for name in ("position", "input")},
                {name: column[row] for name, column in columns.items()},
            )


def _id(given: int | str | None, ids_of: Callable[[str], Sequence[int]], param: str) -> int | None:
    """The id of a token. Raises InvalidRequest for a text that is not one token."""
    if not isinstance(given, str):
        return given
    found = ids_of(given)
    if len(found) != 1:
        raise InvalidRequest(
            f"{given!r} is {len(found)} tokens ({', '.join(map(str, found))}) of this model; give the text "
            "of one token with its leading space, or an id",
            param=param,
        )
    return found[0]


def run(run: AnalysisRun, spec: LensSpec, served: Sequence[ServedModel]) -> AnalysisResults:
    """Read every selected row once.

    Args:
        served: models whose files this worker may read.

    Raises:
        InvalidRequest: no session matches, or the hooks do not suit the model or the token.
        UnknownModel, ModelRefused, ModelChanged: see `model_files.folder_of`.
        PackageMissing: see `Checkpoint`.
        Interrupted: the analysis must end here.
    """
    with run.database.read() as session:
        survey = queries.survey(
            session, spec.sessions, spec.hooks, kind=spec.kind, with_stream=spec.attributes
        )
        ids = queries.session_ids(session, spec.sessions)
        identity = queries.identity(session, ids[0])
        with_logits = queries.sources(session, spec.sessions, LOGITS)
    folder = model_files.folder_of(identity, served)
    with ModelEnd(folder) as model:
        hooks = matching(survey.tensors, spec.hooks or ["resid_post"])
        for name, info in survey.tensors.items():
            if info.shape[1] != model.width:
                raise InvalidRequest(
                    f"{name} is {info.shape[1]} wide; the unembedding reads {model.width}", param="hooks"
                )
        last = f"resid_post.{model.layers - 1}"
        if spec.attributes and last not in survey.tensors:
            raise InvalidRequest(f"{last} is not stored: contributions are taken at its norm", param="token")
        compared = _compare(run.store, with_logits, model, last, is_float32=identity.dtype == "float32")
        stream = queries.stream(survey.tensors) if spec.attributes else []
        ids_of = model_files.ids_of(folder)
        token = NEXT if spec.token == NEXT else _id(spec.token, ids_of, "token")
        tokens = (token, _id(spec.against, ids_of, "against"))
        sums = LensSums(spec, model, hooks, stream, run.check, tokens=tokens)
        progress = Pass(ids, list(survey.tensors), sums)
        progress.read(run, spec.positions, with_token_ids=True)
    return _results(spec, sums, progress, compared, model_files.texts_of(folder))


def _results(
    spec: LensSpec, sums: LensSums, progress: Pass, compared: int, text_of: Callable[[int], str]
) -> AnalysisResults:
    body = LensResult(
        spec=spec.model_dump(mode="json"),
        sessions=progress.sessions,
        hooks=sums.of_hooks(),
        attribution=sums.attribution(),
        compared_rows=compared,
        grid=sums.grid(progress.ids, text_of),
        **left_out(progress.skipped),
    )
    tables: dict[str, Any] = {
        "hooks": [{"hook": hook} | numbers for hook, numbers in body.hooks.items()],
        "lens": list(sums.lines(progress.ids, text_of)),
    }
    if sums.components:
        attributed = list(sums.contributions(progress.ids))
        tables |= {"attribution": body.attribution, "contributions": attributed}
    rows = body.hooks[sums.hooks[0]]["rows"]
    return AnalysisResults(
        body=body, tables=tables, summary=f"{rows} rows of {len(sums.hooks)} hooks read as tokens"
    )


def _compare(
    store: ArtifactStore, found: Sequence[SessionSource], model: ModelEnd, last: str, *, is_float32: bool
) -> int:
    """Compare the lens of the last layer with stored logits, if there are any. Returns the number of rows.

    Args:
        found: sessions, with the tensor of the logits if they have one.
        is_float32: whether the model computed in float32.

    Raises:
        InvalidRequest: they differ by more than rounding.
    """
    for source in found:
        if source.info is None or source.info.shape[1] != model.vocabulary:
            continue
        with suppress(NotFound, StoreDamaged):  # the pass reports such sessions
            reader = SessionReader(store, source.id)
            tensors = reader.manifest.tensors
            # an intervention may change the rows or the logits after the other were read
            if last not in tensors or tensors[last].summary is not None or reader.manifest.interventions:
                continue
            if any(DTYPES[tensors[name].dtype].has_scales for name in (last, LOGITS)):
                continue  # rounded too much to tell
            rows = {token: row for row, token in enumerate(reader.tokens_of_rows(last))}
            of_logits = {token: row for row, token in enumerate(reader.tokens_of_rows(LOGITS))}
            tokens = [token for token in of_logits if token in rows][-_COMPARED:]
            if not tokens:
                continue
            residual = np.concatenate(
                [selected_rows.read(reader, last, rows[t], rows[t] + 1) for t in tokens]
            )
            stored = np.concatenate(
                [selected_rows.read(reader, LOGITS, of_logits[t], of_logits[t] + 1) for t in tokens]
            )
            is_exact = is_float32 and tensors[last].dtype == tensors[LOGITS].dtype == "F32"
            differences = model.ask("logits", residual) - stored
            _refuse_difference(differences, stored, source.id, is_exact=is_exact)
            return len(tokens)
    return 0


def _refuse_difference(differences: Array, stored: Array, session_id: str, *, is_exact: bool) -> None:
    difference, largest = float(np.abs(differences).max()), float(np.abs(stored).max())
    if not difference <= (_EXACT if is_exact else _ROUNDED) * largest:
        raise InvalidRequest(
            f"the lens of the last layer differs from the stored logits of session {session_id} by up to "
            f"{difference:.3g}, and the largest of these is {largest:.3g}; the files of the model do not "
            "compute what the sessions were recorded with"
        )


def _mean(total: float, count: float) -> float | None:
    return float(total / count) if count else None
