"""The view of a session in a notebook: some of its tokens, coloured by one number each."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actograph.attention_patterns import Floats
from actograph.client.tensors import TOKEN_IDS, LazyTensor
from actograph.contract import hooks, readouts
from actograph.contract.errors import ActographError, InvalidRequest, NotFound
from actograph.contract.resources import TensorInfo
from actograph.contract.row_selection import Segment
from actograph.contract.saes import PREFIX, is_latents, part_names
from actograph.dtypes import read_as
from actograph.latents import with_latents
from actograph.short_texts import size
from actograph.tensor_files import itemsize
from actograph.viewer.notebook import Colouring, ShownAttention, ShownSession, ShownTokens, session_html
from actograph.viewer.points import first_shown, points_of
from actograph.viewer.scale import ScaleKind

#: tokens in view unless others are asked for, and rows of theirs that are read, in bytes
DEFAULT_TOKENS, DEFAULT_BYTES = 256, 4 << 20
#: tokens in view, at most; with attention, of which each token has a row
MOST_TOKENS, MOST_WITH_ATTENTION = 2048, 512
#: readouts whose numbers are beside the tokens, and lines of the table of tensors
MOST_BESIDE, MOST_LINES = 8, 60

#: a direction, or one for each hook
Direction = str | NDArray[Any] | Mapping[str, NDArray[Any]]


class _TokenSegments(Protocol):
    @property
    def token_texts(self) -> list[str]: ...
    @property
    def segments(self) -> list[Segment]: ...
    @property
    def prompt_tokens(self) -> int: ...


class Viewable(Protocol):
    """The parts of a session that a view reads."""

    @property
    def facts(self) -> str:
        """The session in one line."""

    def _stored(self) -> Mapping[str, TensorInfo | None]: ...
    def _read(self, name: str) -> LazyTensor: ...
    def _manifest(self) -> _TokenSegments: ...
    def _direction(self, name: str) -> tuple[str, NDArray[np.float64]]: ...
    def __getitem__(self, hook: str) -> LazyTensor: ...
    def tokens_of(self, hook: str) -> NDArray[np.int64]: ...
    def attention(self, layer: int, head: int | None = None, *, rows: range | None = None) -> Floats: ...


@dataclass(frozen=True)
class SessionView:
    """Tokens of a session as HTML: a notebook shows them, `html` is the text. It asks nothing of a server."""

    html: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page that shows the tokens in a browser."""
        head = '<!doctype html>\n<meta charset="utf-8">\n<title>Session</title>\n'
        Path(path).write_text(f"{head}{self.html}\n", encoding="utf-8")

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"SessionView({len(self.html):,} characters of HTML)"


@dataclass(frozen=True, kw_only=True)
class ViewChoice:
    """The numbers that colour the tokens, and the tokens in view; see `StoredSession.show`."""

    hook: str | None = None
    channel: int | None = None
    probe: Direction | None = None
    latent: int | tuple[str, int] | None = None
    readout: str | None = None
    attention: tuple[int, int] | None = None
    tokens: range | None = None


def view_of(session: Viewable, choice: ViewChoice) -> SessionView:
    """Draw the chosen view of a session.

    Raises:
        NotFound: the session has no such tensor.
        InvalidRequest: the choice contradicts itself, or is too large.
    """
    return SessionView(session_html(_shown(session, choice)))


def default_view(session: Viewable) -> SessionView:
    """Draw the default view of a session; facts alone if its tokens cannot be read."""
    try:
        return view_of(session, ViewChoice())
    except ActographError as error:
        trouble = f"Its tokens cannot be shown: {error.message}"
        return SessionView(session_html(ShownSession(facts=session.facts, trouble=trouble)))


def _shown(session: Viewable, choice: ViewChoice) -> ShownSession:
    stored = {name: info for name, info in session._stored().items() if info is not None}
    by = _TokenNumbers.chosen(session, stored, choice)
    total, row_bytes = len(session._read(TOKEN_IDS)), by.row_bytes(stored) if by is not None else 0
    tokens = _window(choice, total, row_bytes)
    manifest, notes = session._manifest(), []
    read = session._read(TOKEN_IDS)[tokens.start : tokens.stop]
    shown = ShownTokens(
        start=tokens.start,
        ids=read.tolist(),
        texts=manifest.token_texts[tokens.start : tokens.stop],
        segments=[(one.name, one.start, one.stop) for one in manifest.segments],
        prompt_tokens=manifest.prompt_tokens,
    )
    if len(tokens) < total:
        notes.append(
            f"Tokens {tokens.start} to {tokens.stop - 1} of {total}; tokens=range(a, b) of show() has others."
        )
    colouring = None
    if by is not None:
        numbers, rows = by.read(session, tokens)
        skip = 1 if by.is_norm and tokens.start == 0 and total > 2 else 0
        colouring = Colouring(name=by.name, numbers=numbers, kind=by.kind, skip=skip)
        notes.append(f"Read for it: {rows} rows of {by.hook}, {size(rows * row_bytes)}.")
    listed = [name for name in stored if readouts.is_readout(name)][:MOST_BESIDE]
    beside = {name: _TokenNumbers(name, name).read(session, tokens)[0] for name in listed}
    attention = _attention(session, choice.attention, tokens) if choice.attention is not None else None
    if attention is not None:
        notes.append(f"The mouse on a token shows the attention of {attention.name}: where the token looks.")
    return ShownSession(
        facts=session.facts,
        tokens=shown,
        colouring=colouring,
        beside=beside,
        attention=attention,
        notes=notes,
        hooks=_table(stored),
    )


def _window(choice: ViewChoice, total: int, row_bytes: int) -> range:
    """The tokens in view: by default the last ones, which hold the answer."""
    most = MOST_WITH_ATTENTION if choice.attention is not None else MOST_TOKENS
    if choice.tokens is None:
        fitting = min(DEFAULT_TOKENS, max(1, DEFAULT_BYTES // max(1, row_bytes)))
        return range(max(0, total - fitting), total)
    tokens = range(total)[choice.tokens.start : choice.tokens.stop]
    if choice.tokens.step != 1:
        raise InvalidRequest(
            f"{choice.tokens}: tokens are consecutive, such as range(10, 20)", param="tokens"
        )
    if len(tokens) > most:
        what = "tokens with attention" if choice.attention is not None else "tokens"
        raise InvalidRequest(
            f"{len(tokens)} {what} are too many for a view; show {most} at most", param="tokens"
        )
    return tokens


@dataclass(frozen=True)
class _TokenNumbers:
    """A number for each token: of one hook's rows, along a direction, or of a latent."""

    hook: str
    name: str
    kind: ScaleKind = ScaleKind(signed=True)  # noqa: RUF009 (frozen)
    channel: int | None = 0
    direction: NDArray[np.float64] | None = None
    latent: int | None = None

    @property
    def is_norm(self) -> bool:
        return self.channel is None and self.direction is None and self.latent is None

    @classmethod
    def chosen(
        cls, session: Viewable, stored: Mapping[str, TensorInfo], choice: ViewChoice
    ) -> "_TokenNumbers | None":
        """The numbers of a choice; None for a session without rows of tokens."""
        given = [
            name for name in ("channel", "probe", "latent", "readout") if getattr(choice, name) is not None
        ]
        if len(given) > 1:
            raise InvalidRequest(
                f"{' and '.join(given)}: tokens have one colour; give one of them", param=given[1]
            )
        if choice.hook is not None and given and given[0] in ("latent", "readout"):
            raise InvalidRequest(f"{given[0]} says what is shown; leave hook out", param="hook")
        if choice.readout is not None:
            name = readouts.stored_name(readouts.short_name(choice.readout))
            return cls(session[name].hook, name)
        if choice.latent is not None:
            return cls._of_latent(stored, choice.latent)
        hook, direction = choice.hook, None
        if isinstance(choice.probe, str):
            own, direction = session._direction(choice.probe)
            hook = hook or own
        hook = hook or first_shown(points_of(stored))
        if hook is None:
            return None
        hook = session[hook].hook
        if direction is None and choice.probe is not None:
            direction = _direction_of(choice.probe, hook)
        if direction is not None:
            width = session[hook].shape[1]
            if direction.shape != (width,):
                raise InvalidRequest(
                    f"the probe has the shape {list(direction.shape)}, and {hook} is {width} wide",
                    param="probe",
                )
            along = choice.probe if isinstance(choice.probe, str) else "the probe"
            return cls(hook, f"{hook} along {along}", direction=direction)
        if choice.channel is not None:
            width = session[hook].shape[1]
            if not 0 <= choice.channel < width:
                raise InvalidRequest(
                    f"channel {choice.channel}: {hook} has channels 0 to {width - 1}", param="channel"
                )
            if is_latents(hook):
                return cls._of_latent(stored, (hook, choice.channel))
            return cls(hook, f"channel {choice.channel} of {hook}", channel=choice.channel)
        if readouts.is_readout(hook):
            return cls(hook, hook)
        return cls(hook, f"norm of {hook}", ScaleKind(log=True), channel=None)

    @classmethod
    def _of_latent(cls, stored: Mapping[str, TensorInfo], chosen: int | tuple[str, int]) -> "_TokenNumbers":
        known = [name for name in with_latents(stored) if is_latents(name)]
        if isinstance(chosen, int):
            if len(known) != 1:
                example = known[0].removeprefix(PREFIX) if known else "res-8"
                raise InvalidRequest(
                    f"latent {chosen}: the session has latents of {len(known)} SAEs; name one of them, such "
                    f'as latent=("{example}", {chosen})',
                    param="latent",
                )
            hook, latent = known[0], chosen
        else:
            hook, latent = f"{PREFIX}{chosen[0].removeprefix(PREFIX)}", chosen[1]
        if hook not in known:
            raise NotFound(hooks.not_stored(hook, known))
        count = with_latents(stored)[hook].shape[1]
        if not 0 <= latent < count:
            raise InvalidRequest(f"latent {latent}: {hook} has latents 0 to {count - 1}", param="latent")
        kind = ScaleKind(signed=True, sparse=True)
        return cls(hook, f"latent {latent} of {hook}", kind, latent=latent)

    def row_bytes(self, stored: Mapping[str, TensorInfo]) -> int:
        """Bytes that are read for a token."""
        names = part_names(self.hook) if is_latents(self.hook) else (self.hook,)
        infos = [stored[name] for name in names if name in stored]
        return sum(info.shape[1] * itemsize(read_as(info.dtype)) for info in infos)

    def read(self, session: Viewable, tokens: range) -> tuple[NDArray[np.float32], int]:
        """The number of each token, NaN without a row, and how many rows were read.

        Raises:
            InvalidRequest: the hook has one row for many tokens.
        """
        found = np.full(len(tokens), np.nan, np.float32)
        info = session._stored().get(self.hook)
        if info is not None and info.summary is not None:
            raise InvalidRequest(
                f"{self.hook} is stored as the {info.summary} of its rows, so no token has a row of its own",
                param="hook",
            )
        of_rows = session.tokens_of(self.hook)
        low, high = (int(one) for one in np.searchsorted(of_rows, (tokens.start, tokens.stop)))
        places = np.asarray(of_rows[low:high]) - tokens.start
        if self.latent is not None:
            numbers, values = (session._read(part)[low:high] for part in part_names(self.hook))
            found[places] = np.where(numbers == self.latent, values, 0).sum(axis=1)
            return found, high - low
        # latents that were not kept are 0, so the values alone have the norm
        of_parts = self.is_norm and is_latents(self.hook)
        tensor = session._read(part_names(self.hook)[1]) if of_parts else session[self.hook]
        rows = tensor[low:high].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.direction is not None:
                length = float(np.linalg.norm(self.direction))
                found[places] = rows @ (self.direction / length) if length else np.nan
            elif self.channel is not None:
                found[places] = rows[:, self.channel]
            else:
                found[places] = np.linalg.norm(rows, axis=1)
        return found, high - low


def _direction_of(probe: NDArray[Any] | Mapping[str, NDArray[Any]] | str, hook: str) -> NDArray[np.float64]:
    if isinstance(probe, Mapping):
        if hook not in probe:
            raise NotFound(f"the probe has no direction of {hook}; it has {', '.join(probe)}", param="probe")
        probe = probe[hook]
    return np.asarray(probe, np.float64)


def _attention(session: Viewable, chosen: tuple[int, int], tokens: range) -> ShownAttention:
    layer, head = chosen
    have = session.tokens_of(f"q.{layer}") if f"q.{layer}" in session._stored() else range(0)
    inside = [int(one) for one in have if one in tokens]
    # without any, `attention` says why
    rows = range(inside[0], inside[-1] + 1) if inside else tokens
    weights = session.attention(layer, head, rows=rows)
    name = f"head {head} of layer {layer}"
    return ShownAttention(name=name, start=rows.start, weights=weights[:, tokens.start :])


def _table(stored: Mapping[str, TensorInfo]) -> list[tuple[str, str, str]]:
    """A line for each point and form: hook or layers, shape, dtype."""
    forms: dict[tuple[str, str, str], list[str]] = {}
    for name, info in with_latents(stored).items():
        kept = f", {info.summary} of {info.over} rows" if info.summary is not None else ""
        shape = f"{list(info.shape)}{kept}"
        forms.setdefault((hooks.point_of(name), shape, info.dtype), []).append(name)
    lines = []
    for (point, shape, dtype), names in forms.items():
        layers = [str(hooks.layer_of(name)) for name in names]
        text = names[0] if len(names) == 1 else f"{point} of layers {', '.join(layers)}"
        lines.append((text, shape, dtype))
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [(f"and {len(lines) - MOST_LINES} more", "", "")]
    return lines
