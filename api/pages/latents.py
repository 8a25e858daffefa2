"""The sessions of a job in which a latent of an SAE is most active."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from actograph.contract.saes import MOST_LATENTS, is_latents
from actograph.latents import with_latents
from api.auth import READ
from api.dependencies import JobId, ServicesDep, slow
from api.pages.rendering import render
from storage.jobs import jobs
from storage.results import matrix, strongest_latents
from storage.sessions import sessions
from storage.sessions.filter import SessionFilter

router = APIRouter(include_in_schema=False, dependencies=[READ])

#: sessions that are read, and that are listed
MOST_READ, LISTED = 1000, 25


@router.get("/jobs/{job_id}/latents")
@slow
def show_latents(
    request: Request,
    services: ServicesDep,
    job_id: JobId,
    sae: Annotated[str, Query(max_length=80)] = "",
    latent: Annotated[int, Query(ge=0, lt=MOST_LATENTS)] = 0,
) -> Response:
    """List the strongest sessions of a latent, with the token. `sae` is the name of latents: `sae:res-8`."""
    wanted = SessionFilter(job_id=job_id)
    with services.database.read() as session:
        jobs.get(session, job_id)
        # lines of a batch may capture by different SAEs
        rows, _ = sessions.find(session, wanted, limit=LISTED)
        shown = sessions.resources_of(session, rows)
        stored = {name: info for one in shown for name, info in with_latents(one.hooks).items()}
        names = [name for name in stored if is_latents(name)]
        name = sae if sae in names else next(iter(names), "")
        found = (
            matrix.sources(session, wanted, [name], epoch=None, limit=MOST_READ)
            if name and "latent" in request.query_params
            else []
        )
    tokens = strongest_latents.strongest(services.store, found, name, latent, most=LISTED)
    values = {
        "job_id": job_id,
        "sizes": {one: stored[one].shape[1] for one in names},
        "sae": name,
        "latent": latent,
        "read": len(found),
        "is_part": len(found) == MOST_READ,
        "tokens": tokens,
    }
    return render(request, "latents.html", values)
