"""Resources: the answers of the service. Times are Unix seconds (UTC), sizes are bytes."""

from actograph.contract.base import Resource
from actograph.contract.resources.base import (
    Deleted,
    ErrorRecord,
    ListPage,
    OpenAIError,
    Problem,
    ProblemItem,
)
from actograph.contract.resources.estimates import Estimate, Need
from actograph.contract.resources.jobs import ConditionResults, Event, Job, JobResults, JobStatus, Progress
from actograph.contract.resources.models import HookInfo, LocationInfo, Model, ModelLoad, ModelStructure
from actograph.contract.resources.queue import Queue, QueuePause, Worker, WorkerStatus
from actograph.contract.resources.samples import Sample, SampleStatus, Score
from actograph.contract.resources.sessions import (
    Session,
    SessionChange,
    SessionDeletion,
    SessionFile,
    SessionStats,
    TensorInfo,
)
from actograph.contract.resources.store import (
    File,
    OwnerUsage,
    StoredObject,
    StoreGc,
    StoreProblem,
    StoreUsage,
    StoreVerification,
    Usage,
)

__all__ = [
    "ConditionResults",
    "Deleted",
    "ErrorRecord",
    "Estimate",
    "Event",
    "File",
    "HookInfo",
    "Job",
    "JobResults",
    "JobStatus",
    "ListPage",
    "LocationInfo",
    "Model",
    "ModelLoad",
    "ModelStructure",
    "Need",
    "OpenAIError",
    "OwnerUsage",
    "Problem",
    "ProblemItem",
    "Progress",
    "Queue",
    "QueuePause",
    "Resource",
    "Sample",
    "SampleStatus",
    "Score",
    "Session",
    "SessionChange",
    "SessionDeletion",
    "SessionFile",
    "SessionStats",
    "StoreGc",
    "StoreProblem",
    "StoreUsage",
    "StoreVerification",
    "StoredObject",
    "TensorInfo",
    "Usage",
    "Worker",
    "WorkerStatus",
]
