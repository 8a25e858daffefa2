"""Common part of the S3 servers: address, credentials, new buckets."""

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress

import boto3.session
from botocore.config import Config

from tests.support.availability import unavailable
from tests.support.servers import Unavailable

ACCESS_KEY, SECRET_KEY = "tests:tester", "s3-secret-of-tests"


class S3Server(ABC):
    """An S3 server on loopback; `start` after `stop` listens on the same port."""

    def __init__(self) -> None:
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def create(self) -> None:
        """Install missing programs and start. Raises Unavailable."""

    @abstractmethod
    def start(self) -> None:
        """Start and wait until it answers. Raises Unavailable."""

    @abstractmethod
    def stop(self) -> None:
        """End the server."""

    @abstractmethod
    def remove(self) -> None:
        """End the server and remove its files."""

    def new_bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"tests-{secrets.token_hex(8)}"
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            # on a busy machine the proxy answers 503 at times
            config=Config(
                s3={"addressing_style": "path"}, retries={"mode": "standard", "total_max_attempts": 8}
            ),
        )
        # of an attempt whose answer was lost
        with suppress(client.exceptions.BucketAlreadyOwnedByYou):
            client.create_bucket(Bucket=name)
        client.close()
        return name


def environment(url: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited` with the AWS variables by which boto3 finds the server at `url`, and no others."""
    values = {name: value for name, value in inherited.items() if not name.startswith("AWS_")}
    return values | {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def running(server: S3Server) -> Iterator[S3Server]:
    """The server while a fixture lasts; skips if it cannot be had."""
    try:
        server.create()
    except Unavailable as error:
        unavailable(str(error))
    yield server
    server.remove()
