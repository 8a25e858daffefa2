"""The S3 store on a server that checks signatures and checksums and knows the age of uploads."""

import urllib.error
import urllib.request

import pytest

from storage.artifacts.factory import open_store
from storage.artifacts.s3 import S3Store
from tests.integration.storage.test_s3_store import *  # noqa: F403 (its tests run here too)
from tests.integration.storage.test_s3_store import FILE, SESSION, put, refusals


def test_wrong_credentials_are_named_as_the_reason(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert all("check the AWS credentials" in m for m in refusals(open_store(f"s3://{s3_bucket}/p")))


def test_a_presigned_url_serves_one_file_and_no_other(store: S3Store) -> None:
    put(store, a=b"abcdef", b=b"secret")
    url = store.presigned_url(f"{SESSION}/a")
    assert url is not None
    with urllib.request.urlopen(url) as reply:
        assert reply.read() == b"abcdef"
    for wrong in (url.replace(f"{SESSION}/a", f"{SESSION}/b"), url.partition("?")[0]):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(wrong)
        assert refused.value.code in (400, 401, 403)
        refused.value.close()


def test_leftovers_are_swept(store: S3Store) -> None:
    key = f"lab/actograph/{FILE}"
    store._client.create_multipart_upload(Bucket=store.bucket, Key=key)
    store._client.create_multipart_upload(Bucket=store.bucket, Key="someone/else")
    assert store.sweep_staging(3600) == 0
    assert store.sweep_staging(-60) == 1
    (left,) = store._client.list_multipart_uploads(Bucket=store.bucket)["Uploads"]
    assert left["Key"] == "someone/else"
