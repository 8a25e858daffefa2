"""`actograph schema`: the JSON Schema of job specs."""

import json

from actograph.cli.output.output import emit


def schema() -> None:
    """Print the JSON Schema of jobs, for editors and checks. Needs no service."""
    from actograph.contract.specs import job_schema

    emit(json.dumps(job_schema(), indent=1))
