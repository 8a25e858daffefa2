"""The end of a model in a process of its own, so that torch's memory goes with it."""

import multiprocessing
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from actograph.analysis.checkpoint import Checkpoint
from actograph.analysis.lens import attribution, constant, logit_lens
from actograph.contract.errors import ActographError
from worker.sample.unforeseen import unforeseen

#: what can be asked: name -> function of the checkpoint, and of the arguments and options of the call
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "lens": lambda checkpoint, rows, **options: logit_lens(rows, checkpoint, **options),
    "attribution": lambda checkpoint, parts, token, **options: attribution(
        parts, checkpoint, token, **options
    ),
    "constant": constant,
    "logits": lambda checkpoint, rows: checkpoint.logits(rows),
}


class ModelEnd:
    """A process that holds the checkpoint in a folder. It ends with this one, however this one ends."""

    def __init__(self, folder: Path) -> None:
        """Start the process and load the checkpoint.

        Raises:
            InvalidRequest, PackageMissing: see `Checkpoint`.
        """
        # a fork would copy the threads' locks
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, folder), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.layers, self.width, self.vocabulary = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call one of `FUNCTIONS` there.

        Raises:
            ActographError: that of the function, or the process has ended.
        """
        with suppress(OSError):  # the process has ended, which the answer tells
            self._connection.send((name, arguments, options))
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.terminate()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            raise ActographError(
                f"the process that ran the end of the model ended with status {self._process.exitcode}; if "
                "it ran out of memory, give the analysis worker more"
            ) from None
        if isinstance(answer, ActographError):
            raise answer
        return answer


def _serve(connection: Connection, folder: Path) -> None:
    """Answer until the other side closes the connection, or ends."""
    # Ctrl-C goes to the whole group; the worker ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        checkpoint = Checkpoint(folder)
        connection.send((checkpoint.layers, checkpoint.width, checkpoint.vocabulary))
        while True:
            name, arguments, options = connection.recv()
            connection.send(_answer_of(checkpoint, name, arguments, options))
    except ActographError as error:
        connection.send(error)
    except (EOFError, OSError):
        return


def _answer_of(
    checkpoint: Checkpoint, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    try:
        return FUNCTIONS[name](checkpoint, *arguments, **options)
    except ActographError as error:
        return error
    except Exception as error:  # noqa: BLE001 (logged, and the reason of the failed sample)
        return unforeseen(error, f"while the end of a model computed {name}")
