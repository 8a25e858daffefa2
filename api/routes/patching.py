"""/v1/jobs/{id}/patching: the effects of a patch job's cells, their arrays and figures."""

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from actograph.analysis.patching import Array
from actograph.contract.errors import NotFound
from actograph.contract.patching import ARRAYS_FILE, PatchingResult
from actograph.report.patching_figures import figure_of
from api.auth import READ
from api.dependencies import JobId, Services, ServicesDep, slow
from api.reading.downloads import binary
from storage.analyses import patched, result_files
from storage.jobs import jobs

router = APIRouter(prefix="/v1", tags=["jobs"], dependencies=[READ])

_TYPES = {"png": "image/png", "svg": "image/svg+xml"}


def read(services: Services, job_id: str) -> tuple[PatchingResult, dict[str, Array]]:
    """The effects and arrays of a patch job. Raises InvalidRequest, Conflict, StoreDamaged."""
    with services.database.read() as session:
        stored = patched.of_job(session, services.store, jobs.get(session, job_id))
    return patched.read(stored)


@router.get("/jobs/{job_id}/patching", summary="Effects of a patch job, also while it runs")
@slow
def get_patching(services: ServicesDep, job_id: JobId) -> PatchingResult:
    """Means over the pairs that have ended. The answer is 409 before the first one."""
    return read(services, job_id)[0]


@router.get(
    "/jobs/{job_id}/patching/{name}",
    summary="Arrays and figures of a patch job",
    response_class=Response,
    responses=binary("`patch.npz`, or a figure of one point: `patch_resid_pre.png` or `.svg`."),
)
@slow
def get_patching_file(
    services: ServicesDep, job_id: JobId, name: Annotated[str, Path(max_length=64)]
) -> Response:
    """`patch.npz` has `metric` and `effect` per pair, and `mean`, `low`, `high` and `pairs` over them."""
    result, arrays = read(services, job_id)
    headers = {"X-Content-Type-Options": "nosniff"}
    if name == ARRAYS_FILE:
        return Response(result_files.npz(arrays), media_type="application/octet-stream", headers=headers)
    point, _, form = name.removeprefix("patch_").partition(".")
    if not name.startswith("patch_") or point not in result.points or form not in _TYPES:
        known = ", ".join([ARRAYS_FILE, *(f"patch_{one}.png" for one in result.points)])
        raise NotFound(f"job {job_id} has no file {name[:64]!r}; there are {known}, and .svg of each figure")
    figure = figure_of(result, point)
    # as an image it can neither run scripts nor load anything
    headers["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    return Response(figure.svg if form == "svg" else figure.png, media_type=_TYPES[form], headers=headers)
