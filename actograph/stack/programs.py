"""Start the programs of the service: modules of its rooms, each run in a process of its own.

In a checkout the rooms (api, evals, storage, worker) are importable. In the wheel they lie in a folder that
only these programs have on their path, so that names such as `api` stay free for other packages.
"""

import importlib.util
import os
import sys
from pathlib import Path

from actograph.contract.errors import ServiceUnavailable

#: the rooms in the wheel; no such folder in a checkout
ROOMS = Path(__file__).resolve().parents[1] / "_service"
#: packages of the extra `server`, and those that a worker needs too
SERVER_PACKAGES = ("fastapi", "celery")
SERVICE_PACKAGES = (*SERVER_PACKAGES, "torch", "nnsight")


def require_installed(packages: tuple[str, ...] = SERVICE_PACKAGES) -> None:
    """Raise ServiceUnavailable if the service's packages are missing, as with the client alone."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ServiceUnavailable(
                f"The service is not installed ({package} is missing). Run: pip install "
                "'actograph[service]'; in a checkout: pip install -e '.[service]'"
            )


def program(module: str, *arguments: str) -> list[str]:
    """Return the command line of a program, such as `storage.migrate`. It needs `program_environment`."""
    return [sys.executable, "-m", module, *arguments]


def program_environment(**variables: str) -> dict[str, str]:
    """Return this process's variables, overridden by `variables`, for a program and its child processes."""
    environment = os.environ | variables
    if ROOMS.is_dir():
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{ROOMS}{os.pathsep}{path}" if path else str(ROOMS)
    # a folder named api or worker in the working directory must not be imported
    return environment | {"PYTHONSAFEPATH": "1"}
