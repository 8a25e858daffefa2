"""Pictures of the dashboard in the documentation, of a real run on the demo's model.

    python -m docs.screenshots                 renews docs/pictures
    python -m docs.screenshots --all FOLDER    every page in both themes and three widths, to look at

Needs the package `playwright` and `chromium` on the PATH.
"""

import argparse
import io
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from actograph.client import Client
from actograph.demo import MODEL_DIR, PROBLEMS

PICTURES = Path(__file__).parent / "pictures"
#: bytes of one picture
MAX_BYTES = 150_000
#: name -> page and theme
CHOSEN = {
    "overview": ("overview", "light"),
    "job": ("job", "light"),
    "analysis": ("probe", "light"),
    "viewer": ("viewer", "light"),
    "viewer-dark": ("viewer", "dark"),
}
THEMES, WIDTHS = ("light", "dark"), (375, 768, 1440)
SETTLED = "() => document.querySelectorAll('.loading').length === 0"
DRAWN = "() => performance.getEntriesByName('viewer-heat').length > 0"


@contextmanager
def service() -> Iterator[str]:
    """Address of a service with the demo's model, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "actograph.cli.main", "up", f"--home={folder}/home", "--port=0"]
        process = subprocess.Popen([*command, f"--model=demo={MODEL_DIR}"], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if match := re.match(r"ready: (\S+)", line):
                    yield match[1]
                    break
            else:
                raise SystemExit("the service did not start")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def drain(client: Client) -> dict[str, str]:
    """Run an evaluation and analyses of its sessions. Returns the addresses of all pages by name."""
    file = client.files.upload(PROBLEMS)
    spec = {
        "kind": "evaluation", "model": "demo", "dataset": {"file_id": file.id}, "limit": 100,
        "conditions": [{"name": "baseline"}, {"name": "hurry", "suffix": " Answer at once."}],
        "sampling": {"max_tokens": 96, "temperature": 1.4},
        "capture": {"points": ["resid_post", "attn_in", "mlp_in"], "layers": "all"}, "tags": ["night"],
    }  # fmt: skip
    job = _run(client, spec)
    analyses = {
        "probe": _run(client, {"kind": "probe", "jobs": [job], "label": "correct"}),
        "outliers": _run(client, {"kind": "outliers", "jobs": [job], "threshold": 4, "position_share": 0.01}),
        "compare": _run(
            client, {"kind": "compare", "jobs": [job], "sessions": {"conditions": ["baseline", "hurry"]}}
        ),
    }
    sessions = list(client.sessions.list(job_id=job, condition="baseline"))
    sample = next(iter(client.jobs.samples(job)))
    return {
        "overview": "/", "jobs": "/jobs", "job": f"/jobs/{job}", "sample": f"/jobs/{job}/samples/{sample.id}",
        "submit": "/submit", "sessions": "/sessions", "session": f"/sessions/{sessions[0].id}",
        "viewer": f"/sessions/{sessions[0].id}/view?token=40",
        "two-sessions": f"/sessions/{sessions[0].id}/view?with={sessions[1].id}",
        "analyses": "/analyses", "new-analysis": f"/analyses/new?kind=probe&job={job}",
        **{name: f"/analyses/{job_id}" for name, job_id in analyses.items()},
        "models": "/models", "workers": "/workers", "storage": "/storage", "keys": "/keys",
        "missing": "/nothing",
    }  # fmt: skip


def _run(client: Client, spec: dict[str, Any]) -> str:
    job = client.submit(spec)
    last = [event.event for event in client.jobs.events(job.id)][-1]
    if last != "job.completed":
        raise SystemExit(f"job {job.id} ended with {last}")
    return job.id


def picture(browser: Browser, url: str, *, theme: str, width: int, height: int, whole: bool) -> bytes:
    """A page as PNG."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
    )
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(url)
    page.wait_for_function(DRAWN if "/view" in url else SETTLED)
    taken = page.screenshot(full_page=whole)
    context.close()
    return taken


def smaller(png: bytes) -> bytes:
    """The same picture with as many colours as fit into `MAX_BYTES`."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        data = io.BytesIO()
        image.quantize(colours, dither=Image.Dither.NONE).save(data, format="PNG", optimize=True)
        if data.tell() <= MAX_BYTES:
            return data.getvalue()
    raise SystemExit(f"a picture is larger than {MAX_BYTES} bytes with 32 colours")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--all", type=Path, metavar="FOLDER", help="every page, in both themes and all widths"
    )
    folder = parser.parse_args().all
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("no chromium on the PATH")
    with service() as url, sync_playwright() as playwright:
        with Client(url) as client:
            pages = drain(client)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for name, path in pages.items():
                for theme in THEMES:
                    for width in WIDTHS:
                        png = picture(browser, url + path, theme=theme, width=width, height=900, whole=True)
                        (folder / f"{name}-{theme}-{width}.png").write_bytes(png)
        else:
            PICTURES.mkdir(exist_ok=True)
            for name, (page, theme) in CHOSEN.items():
                png = picture(browser, url + pages[page], theme=theme, width=1280, height=860, whole=False)
                (PICTURES / f"{name}.png").write_bytes(smaller(png))
        browser.close()


if __name__ == "__main__":
    main()
