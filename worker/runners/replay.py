"""Replays: the stored tokens of sessions, read again."""

from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.models import ModelStructure, short
from storage.analyses import replays
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.queue.leases import LeasedSample
from storage.sessions.manifest import SessionManifest
from storage.sessions.reader import SessionReader
from worker.runners.runner import Prompt, ReplayedSample, Runner


class ReplayRunner(Runner):
    """One stored session per sample. Its text, scores and tool use are those of the session's own sample."""

    sampling = None
    takes_turns = True

    def __init__(self, sources: "StoredSources") -> None:
        self._sources = sources

    def prompt(self, sample: LeasedSample) -> Prompt:
        """The first turn of the stored session.

        Raises:
            InvalidRequest: the session was deleted, or its tokens are of another tokenizer.
            StoreDamaged: its files are missing or damaged.
        """
        source, read = self._sources.read(sample.input[replays.SOURCE])
        return Prompt(
            text=source.prompt,
            token_ids=read.turns[0][0],
            truncated_from=read.reader.manifest.truncated_from,
            replayed=read,
        )

    def completion(self, sample: LeasedSample, token_ids: tuple[int, ...]) -> str:
        return ""  # the sample's run has the stored one


class StoredSources:
    """Reads samples of stored sessions for the loaded model."""

    def __init__(
        self, structure: ModelStructure, tokenizer_sha256: str, database: Database, store: ArtifactStore
    ) -> None:
        """
        Args:
            structure: of the loaded model.
            tokenizer_sha256: of its tokenizer.
        """
        self.structure = structure
        self._tokenizer_sha256 = tokenizer_sha256
        self._database = database
        self._store = store

    def read(self, session_id: str) -> tuple[replays.SourceSample, ReplayedSample]:
        """The sample of a session: by the index, and with the session's tokens and turns.

        Raises:
            InvalidRequest: the session was deleted, or its tokens are of another tokenizer.
            StoreDamaged: its files are missing or damaged.
        """
        with self._database.read() as session:
            source = replays.stored(session, session_id)
        if source is None:
            raise InvalidRequest(
                f"session {session_id} was deleted after the job was submitted", param="sessions"
            )
        reader = SessionReader(self._store, session_id, recorded=source.manifest)
        try:
            manifest, ids = reader.manifest, reader.token_ids()
        except NotFound as error:
            raise StoreDamaged(f"session {session_id} cannot be read: {error.message}") from error
        if manifest.tokenizer_sha256 != self._tokenizer_sha256:
            raise InvalidRequest(
                f"session {session_id} was recorded with another tokenizer "
                f"({short(manifest.tokenizer_sha256)}) than that of {self.structure.model} "
                f"({short(self._tokenizer_sha256)}), so its tokens are other texts to this model",
                param="model",
            )
        identity = self.structure.identity
        return source, ReplayedSample(
            reader=reader,
            token_ids=ids,
            turns=turns_of(manifest, ids),
            spec=source.spec,
            condition=source.condition,
            same_model=identity is not None and identity.sha256 == manifest.identity_sha256,
            completion=source.completion,
            scores=source.scores,
            correct=source.correct,
            tools=source.tools,
        )


def turns_of(manifest: SessionManifest, ids: list[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompt and generated tokens of each turn, which begins with a part of the turn before it."""
    if not manifest.turns:
        return [(tuple(ids), ())]
    found, before = list[tuple[tuple[int, ...], tuple[int, ...]]](), list[int]()
    for turn in manifest.turns:
        kept = before[: turn.context or 0]
        generated_from = turn.start + turn.prompt_tokens
        prompt, generated = [*kept, *ids[turn.start : generated_from]], ids[generated_from : turn.stop]
        found.append((tuple(prompt), tuple(generated)))
        before = [*prompt, *generated]
    return found
