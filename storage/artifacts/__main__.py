"""Check the artifact store, by an object that is stored, read and deleted: `python -m storage.artifacts`."""

import sys

from actograph.contract.errors import ServiceUnavailable
from actograph.settings import settings_or_exit
from storage.artifacts.factory import open_store


def main() -> int:
    url = settings_or_exit("python -m storage.artifacts").effective_artifact_url
    try:
        open_store(url).check()
    except (ServiceUnavailable, ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{url} stores, gives back and deletes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
