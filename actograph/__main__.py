"""`python -m actograph`: the command line, where the command itself is on no PATH."""

import sys

from actograph.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
