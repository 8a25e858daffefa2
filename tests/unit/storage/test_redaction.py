"""What may not be read in a log or an error."""

import json
import logging
import sys

import pytest

from actograph.settings import Settings
from storage import redaction
from storage.redaction import JsonFormatter, RedactingFormatter, conceal, redact

KEY = "acto_" + "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def _knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", ())


def test_what_has_the_form_of_a_secret_is_blotted_out(subtests: pytest.Subtests) -> None:
    for text, shown in [
        (f"GET /v1/jobs/{KEY} 404", "GET /v1/jobs/acto_[redacted] 404"),
        (f"{KEY[:20]}... and {KEY.upper()[5:]}", f"acto_[redacted]... and {KEY.upper()[5:]}"),
        ("Authorization: Bearer sk-abc123, x", "Authorization: Bearer [redacted], x"),
        ("/v1/jobs/bearer%20sk-abc123", "/v1/jobs/bearer%20[redacted]"),
        (
            "cannot reach redis://:pa55word@10.0.0.1:6379/0",
            "cannot reach redis://:[redacted]@10.0.0.1:6379/0",
        ),
        ("postgresql://me:pa55@db/x failed", "postgresql://me:[redacted]@db/x failed"),
        (
            "/v1/jobs?limit=1&api_key=sk-1&token=t2&tag=a",
            "/v1/jobs?limit=1&api_key=[redacted]&token=[redacted]&tag=a",
        ),
        ("http://127.0.0.1:8420/v1/jobs?after=job_1", "http://127.0.0.1:8420/v1/jobs?after=job_1"),
        ("http://[::1]:8420/a@b:c", "http://[::1]:8420/a@b:c"),
    ]:
        with subtests.test(text=text, shown=shown):
            assert redact(text) == shown


def test_secrets_of_the_settings_are_blotted_out_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of/the+store=")
    conceal(
        Settings(
            api_keys=("a key/with signs", "another-key"),
            supervisor_key="supervisors",
            broker_url="redis://:pass%40word@127.0.0.1:1/0",
            database_url="postgresql+psycopg://me:p/ss#w:ord@db/x",
        )
    )
    for secret in (
        *("a key/with signs", "a%20key/with%20signs", "a%20key%2Fwith%20signs", "a+key%2Fwith+signs"),
        *("another-key", "supervisors", "pass@word", "pass%40word", "p/ss#w:ord"),
        *("of/the+store=", "of%2Fthe%2Bstore%3D"),
    ):
        assert redact(f"before {secret} after") == "before [redacted] after"
    assert redact("https://hooks.example.com/ and me") == "https://hooks.example.com/ and me"


def test_a_short_key_does_not_blot_out_words() -> None:
    conceal(Settings(api_keys=("job",)))
    assert redact("the job") == "the job"


def test_a_traceback_tells_no_key() -> None:
    try:
        raise RuntimeError(f"with {KEY}")
    except RuntimeError:
        record = logging.LogRecord("api", logging.ERROR, "x.py", 1, "GET %s", ("/a",), sys.exc_info())
    said = RedactingFormatter("%(levelname)s %(message)s").format(record)
    assert said.splitlines()[0] == "ERROR GET /a"
    assert "RuntimeError: with acto_[redacted]" in said
    assert KEY not in said


def test_a_json_line_has_the_ids_that_it_speaks_of_and_no_key() -> None:
    job, sample = "job_" + "0" * 32, "smp_" + "1" * 32
    try:
        raise RuntimeError(f"with {KEY}")
    except RuntimeError:
        text = "sample %s of job %s failed with %s"
        record = logging.LogRecord("api", logging.ERROR, "x.py", 1, text, (sample, job, KEY), sys.exc_info())
    record.created = 1.5
    line = json.loads(JsonFormatter().format(record))
    assert "RuntimeError: with acto_[redacted]" in line.pop("exception")
    assert line == {
        "time": "1970-01-01T00:00:01.500+00:00", "level": "error", "logger": "api", "job": job,
        "sample": sample,
        "message": f"sample {sample} of job {job} failed with acto_[redacted]",
    }  # fmt: skip
