"""Which role each route needs: the one place that says it.

A route that is not listed is an admin's. `read` reads what its owner has, `submit` also makes, changes and
deletes it, `admin` does what concerns all: the queue, the workers, the store, the keys.
"""

import re
from collections.abc import Mapping

from starlette.routing import compile_path

from actograph.contract.service.key_roles import Role

#: probes ask these, and they tell nothing of anyone's work
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})

_READ = """
GET  /openapi.json
GET  /docs
GET  /docs/oauth2-redirect
GET  /redoc
GET  /v1/jobs
GET  /v1/jobs/{job_id}
GET  /v1/jobs/{job_id}/results
GET  /v1/jobs/{job_id}/export
GET  /v1/jobs/{job_id}/comparison
GET  /v1/jobs/{job_id}/samples
GET  /v1/jobs/{job_id}/samples/{sample_id}
GET  /v1/jobs/{job_id}/events
POST /v1/estimate
GET  /v1/activations/sessions
GET  /v1/activations/sessions/stats
GET  /v1/activations/stats
GET  /v1/activations/session/{session_id}
GET  /v1/activations/sessions/{session_id}
GET  /v1/activations/sessions/{session_id}/manifest
GET  /v1/activations/sessions/{session_id}/tensors/{hook:path}
GET  /v1/activations/sessions/{session_id}/files/{name}
HEAD /v1/activations/sessions/{session_id}/files/{name}
GET  /v1/files
GET  /v1/files/{file_id}
GET  /v1/files/{file_id}/content
GET  /v1/interventions
GET  /v1/interventions/{vector_id}
GET  /v1/models
GET  /v1/models/{model:path}
GET  /v1/model/structure
GET  /v1/queue
GET  /metrics
GET  /v1/batches
GET  /v1/batches/{batch_id}
GET  /v1/capabilities
"""
_SUBMIT = """
POST   /v1/jobs
DELETE /v1/jobs/{job_id}
POST   /v1/jobs/{job_id}/cancel
POST   /v1/jobs/{job_id}/retry
POST   /v1/jobs/{job_id}/rescore
POST   /v1/jobs/{job_id}/comparison/activations
DELETE /v1/activations/sessions
PATCH  /v1/activations/sessions
DELETE /v1/activations/session/{session_id}
PATCH  /v1/activations/session/{session_id}
DELETE /v1/activations/sessions/{session_id}
PATCH  /v1/activations/sessions/{session_id}
POST   /v1/files
POST   /v1/chat/completions
POST   /v1/completions
POST   /v1/batches
POST   /v1/batches/{batch_id}/cancel
DELETE /v1/files/{file_id}
POST   /v1/interventions
DELETE /v1/interventions/{vector_id}
"""
_ADMIN = """
POST   /v1/models/load
POST   /models/load
GET    /v1/models/load/{load_id}
POST   /v1/queue/pause
POST   /v1/queue/resume
GET    /v1/workers
POST   /v1/store/gc
POST   /v1/store/verify
POST   /v1/keys
GET    /v1/keys
GET    /v1/keys/{key_id}
PATCH  /v1/keys/{key_id}
DELETE /v1/keys/{key_id}
"""


def _table() -> dict[tuple[str, str], Role]:
    found: dict[tuple[str, str], Role] = {}
    for role, lines in ((Role.ADMIN, _ADMIN), (Role.SUBMIT, _SUBMIT), (Role.READ, _READ)):
        for line in lines.split("\n"):
            if line:
                method, path = line.split()
                found[method, path] = role
    return found


#: (method, path with its parameters) -> the least role that is let in
ROLES: Mapping[tuple[str, str], Role] = _table()


def _by_method() -> dict[str, list[tuple[re.Pattern[str], Role]]]:
    found: dict[str, list[tuple[re.Pattern[str], Role]]] = {}
    for (method, path), role in ROLES.items():
        found.setdefault(method, []).append((compile_path(path)[0], role))
    return found


_BY_METHOD = _by_method()


def needed_role(method: str, path: str) -> Role | None:
    """What the route at this address needs; None where the table has none, not even a wrong method.

    A path that two entries fit is the more demanding one's.
    """
    for pattern, role in _BY_METHOD.get(method, ()):
        if pattern.match(path):
            return role
    return None
