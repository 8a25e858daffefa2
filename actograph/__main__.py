"""`python -m actograph`: the command line without the `actograph` script."""

import sys

from actograph.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
