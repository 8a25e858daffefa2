"""Patch jobs from arguments and flags."""

from typing import Any

import pytest

from actograph.contract.job_specs import PatchSpec
from tests.integration.api.client.conftest import Wire
from tests.support.command_line import Run


def test_a_job_is_submitted_from_arguments_and_flags(wire: Wire, run: Run, subtests: pytest.Subtests) -> None:
    first, second = "job_" + "1" * 32, "job_" + "2" * 32
    sessions = {name: "ses_" + name * 32 for name in "ab"}
    both = {"clean": {"jobs": [first]}, "corrupted": {"jobs": [second]}}
    readout = {"readout": {"vector": "truth", "hook": "resid_post.20"}}
    tagged = {
        "clean": {"jobs": [first], "tag": "clean"},
        "corrupted": {"jobs": [first], "condition": "EP02"},
    }
    cases: dict[str, tuple[list[str], dict[str, Any]]] = {
        "jobs": ([first, second], both),
        "sessions": (
            [sessions["a"], sessions["b"], "--limit", "1"],
            {
                "clean": {"ids": [sessions["a"]], "limit": 1},
                "corrupted": {"ids": [sessions["b"]], "limit": 1},
            },
        ),
        "one job": ([f"{first}:tag=clean", f"{first}:condition=EP02", "--pair-by", "group"],
                    tagged | {"pair_by": "group"}),
        "cells": (
            [first, second, "--points", "z,q@8:12", "--heads", "0,5", "--positions", "5,-1,prompt[3:6]"],
            both
            | {"points": ["z", "q"], "layers": "8:12", "heads": [0, 5], "positions": [5, -1, "prompt[3:6]"]},
        ),
        "all": (
            [first, second, "--points", "z@1,2", "--heads", "all", "--direction", "noise"],
            both | {"points": ["z"], "layers": [1, 2], "heads": "all", "direction": "noise"},
        ),
        "tokens": (
            [first, second, "--metric", "logit_difference", "--answer", " Mary", "--against", "17"],
            both | {"metric": "logit_difference", "answer": " Mary", "against": 17},
        ),
        "a readout": (
            [first, second, "--metric", "readout:truth@resid_post.20", "--tag", "a", "--priority", "3"],
            both | {"metric": readout, "tags": ["a"], "priority": 3},
        ),
    }  # fmt: skip
    for title, (arguments, body) in cases.items():
        with subtests.test(case=title):
            # the jobs and sessions do not exist, which the service says
            code, _, err = run("patch", *arguments, "--no-watch")
            assert code == 1 and wire.seen[-1].path == "/v1/jobs", err
            spec = PatchSpec.model_validate_json(wire.seen[-1].body).model_dump(mode="json")
            assert spec == PatchSpec.model_validate(body | {"kind": "patch"}).model_dump(mode="json")
    for arguments, says in (
        ([f"{first}:tag", second], "is not JOB, SESSION or JOB:FIELD=VALUE"),
        ([f"{first}:model=x", second], "with a field of tag, condition"),
        ([first, second, "--points", "resid_pre.3"], "is a hook; name a point"),
        ([first, second, "--heads", "some"], "use all, or 0,5"),
        ([first, second, "--metric", "probe:truth"], "is not log_probability"),
        ([first, second, "--metric", "probability"], "metric"),
        ([first, second, "--positions", "answer"], "positions"),
        ([first, second, "--answer", "3", "--metric", "readout:truth"], "a readout needs no answer"),
    ):
        with subtests.test(arguments=arguments):
            code, _, err = run("patch", *arguments, "--no-watch")
            assert code != 0 and says in err, err
