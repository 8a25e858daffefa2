"""`python -m bench`: the benches that need no input, one after the other, in their short form."""

import subprocess
import sys

PROGRAMS = (
    ["bench.capture_throughput"],
    ["bench.session_files"],
    ["bench.session_listing", "--rounds", "10"],
    ["bench.peak_memory"],
)


def main() -> int:
    for program in PROGRAMS:
        sys.stdout.write(f"\n== python -m {' '.join(program)}\n")
        sys.stdout.flush()
        if status := subprocess.run([sys.executable, "-m", *program], check=False).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
