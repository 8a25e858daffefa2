"""Write every generated page, or with `--check` name the pages that are out of date."""

import sys

from docs.generate.pages import REFERENCE, pages


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them with the files. Returns the exit status."""
    stale = []
    for name, text in pages().items():
        path = REFERENCE / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"written: docs/reference/{name}\n")
    if stale and "--check" in arguments:
        sys.stdout.write(f"out of date: {' '.join(stale)}; run: python -m docs.generate\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
