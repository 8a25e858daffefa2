"""Templates of a client's own task: Jinja, as lm-eval's doc_to_text and doc_to_target."""

from collections.abc import Mapping
from typing import Any

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.specs import MAX_PROMPT_CHARS
from actograph.tasks import sandbox
from actograph.tasks.sandbox import SandboxError


class RowTemplate:
    """A template over the columns of a row; the bare name of a column stands for its value."""

    def __init__(self, source: str, *, param: str) -> None:
        """`param`: field of the job that holds the template, for messages.

        Raises:
            InvalidRequest: the source is not a Jinja template.
        """
        self._param = param
        self._name = param.rpartition(".")[2]
        self._source = "{{" + source + "}}" if source.isidentifier() else source
        try:
            self.columns = frozenset(sandbox.call("columns_of", self._source))
        except SandboxError as error:
            raise InvalidRequest(f"not a Jinja template: {error}", param=param) from None

    def render(self, columns: Mapping[str, Any]) -> str:
        """The text for one row.

        Raises:
            InvalidDataset: the row lacks a column, or the template fails on it.
            InvalidRequest: the template needs too much time or memory.
        """
        used = {name: columns[name] for name in self.columns if name in columns}
        try:
            text = sandbox.call("render", self._source, used, MAX_PROMPT_CHARS)
        except SandboxError as error:
            if error.kind == "limits":
                raise InvalidRequest(f"the template {error}", param=self._param) from None
            if error.kind == "UndefinedError":
                known = ", ".join(map(str, columns)) or "none"
                raise InvalidDataset(f"{self._name}: {error}; the row's columns are {known}") from None
            raise InvalidDataset(f"{self._name} fails on this row: {error}") from None
        assert isinstance(text, str)
        return text
