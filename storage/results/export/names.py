"""Names of the files in a results folder."""

import re

#: characters that no part of a path may have
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]+")
MIN_DIGITS = 4


def safe_part(text: str, otherwise: str) -> str:
    """`text` as one part of a path.

    Replaces the characters that lm-eval replaces (`sanitize_model_name`), and all that a file system or a
    shell could misread. Removes leading dots.
    """
    return _UNSAFE.sub("__", text).lstrip(".")[:128] or otherwise


class SampleNames:
    """Names such as `gsm8k_0001`, or `gsm8k_0001__ep02__epoch_1` with several conditions or epochs.

    Numbers in names count from 1; the number is the problem's row in the dataset.
    """

    def __init__(self, task: str, *, conditions: int, epochs: int) -> None:
        self._task = safe_part(task, "sample")
        self._with_condition = conditions > 1
        self._with_epoch = epochs > 1

    def __call__(self, index: int, condition: str | None, epoch: int) -> str:
        name = f"{self._task}_{index + 1:0{MIN_DIGITS}d}"
        if self._with_condition:
            name += f"__{safe_part(condition or '', 'none')}"
        return name + (f"__epoch_{epoch + 1}" if self._with_epoch else "")
