"""What the docs use of curl and tar, for machines that have Python alone: `stand_ins.py curl|tar ...`."""

import argparse
import sys
import tarfile
from pathlib import Path

import httpx


def curl(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("curl")
    for flag in ("-s", "-S", "--fail-with-body"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="body")
    parser.add_argument("-o", dest="out", type=Path)
    parser.add_argument("url")
    # `-sS` is two flags in one, which argparse takes apart
    given = parser.parse_intermixed_args(arguments)
    headers = dict(header.split(": ", 1) for header in given.headers)
    method = given.method or ("GET" if given.body is None else "POST")
    body = None if given.body is None else given.body.encode()
    answer = httpx.request(method, given.url, headers=headers, content=body, trust_env=False, timeout=60)
    if given.out is None:
        sys.stdout.buffer.write(answer.content)
    else:
        given.out.write_bytes(answer.content)
    return 22 if answer.is_error else 0  # curl's status of --fail-with-body


def tar(arguments: list[str]) -> int:
    if arguments != ["xz"]:
        sys.exit(f"tar {arguments} is not known here")
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as archive:
        archive.extractall(filter="data")
    return 0


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    sys.exit({"curl": curl, "tar": tar}[name](rest))
