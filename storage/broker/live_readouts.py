"""Values of readouts on their way from a worker to a client, beside the live text.

They are written like a text, in a line of names and then a record for each token. All records have one
length, so a sample that is run again writes its values at the same places, and a reader goes on from its own.
"""

import json
import math
import struct
from collections.abc import Sequence

from actograph.contract.readouts import TokenReadouts


def readouts_id(sample_id: str) -> str:
    """Name of a sample's values among the live texts."""
    return f"{sample_id}:readouts"


def header(names: Sequence[str]) -> bytes:
    """The line of names."""
    return json.dumps(list(names)).encode() + b"\n"


def record(token: int, values: Sequence[float]) -> bytes:
    """The values of a token, as float32 in hexadecimal digits."""
    return struct.pack(f">I{len(values)}f", token, *values).hex().encode() + b"\n"


class LiveReadouts:
    """Reads values piece by piece."""

    def __init__(self) -> None:
        self._names: list[str] | None = None
        self._rest = ""

    def read(self, piece: str) -> list[TokenReadouts]:
        """The tokens whose values end in this piece."""
        *lines, self._rest = (self._rest + piece).split("\n")
        if self._names is None and lines:
            self._names = json.loads(lines.pop(0))
        found = []
        for line in lines:
            names = self._names or []
            token, *values = struct.unpack(f">I{len(names)}f", bytes.fromhex(line))
            # NaN: the token has no value of this readout; a request with other such numbers fails
            pairs = zip(names, values, strict=True)
            known = {name: value for name, value in pairs if math.isfinite(value)}
            found.append(TokenReadouts(token=token, values=known))
        return found
