"""Make the pictures of the page: a small drain of the demo's model, seen in the `chromium` of the PATH.

python -m docs.screenshots [--out FOLDER] [--dark]
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from actograph.client import Client
from actograph.demo import MODEL_DIR, PROBLEMS
from actograph.stack.up import up_process

IMAGES = Path(__file__).with_name("images")
SIZE = {"width": 1280, "height": 800}
#: page -> what must be seen before the picture is taken, and the part at its top
WAITS = {"job": "#compared table", "session": "#viewer-row h2", "probe": "img.figure"}
TOPS = {
    "job": "section:has(#comparison)",
    "session": "section:has(#viewer-controls)",
    "probe": "section:has(img.figure)",
}
LOADED = "() => [...document.images].every((one) => one.complete && one.naturalWidth)"


def drain(client: Client, folder: Path) -> dict[str, str]:
    """Run an evaluation under two conditions and a probe. Returns name -> path of the pages to show.

    Args:
        folder: for a page that is a notebook's output.
    """
    job = client.evaluate(
        "gsm8k",
        dataset=PROBLEMS,
        conditions=["greedy", "warm:temperature=1.8"],
        capture="resid_post@all",
        max_tokens=96,
        tags=["night"],
    ).wait()
    warm = {"jobs": [job.id], "condition": "warm"}
    probe = client.analysis.probe(warm, hooks=["resid_post"], positions="generated", reduce="mean")
    wrong = job.sessions(condition="warm", correct=False).first()
    assert wrong is not None
    view = folder / "notebook.html"
    heads = client.capture(
        ["Tom has 3 apples and Mia has 5 apples. How many apples do they have?"],
        capture="resid_post,q,k@all",
        max_tokens=24,
    ).wait()
    shown = heads.sessions().first()
    assert shown is not None
    shown.show("resid_post.1", attention=(1, 0)).save(view)
    chosen = f"hook=resid_post.1&of=projection&vector={probe.session.id}&token={wrong.prompt_tokens + 8}"
    return {
        "overview": "/",
        "job": f"/jobs/{job.id}",
        "sample": f"/jobs/{job.id}/samples/{wrong.sample_id}?against=greedy",
        "session": f"/sessions/{wrong.id}?{chosen}",
        "probe": f"/jobs/{probe.job.id}",
        "notebook": view.as_uri(),
    }


def take(url: str, pages: dict[str, str], folder: Path, *, dark: bool) -> None:
    """Write a PNG of each page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--hide-scrollbars"]
        )
        page = browser.new_page(viewport=SIZE, color_scheme="dark" if dark else "light")
        for name, path in pages.items():
            # the stream of a live page never ends
            page.goto(path if "://" in path else f"{url}{path}", wait_until="load")
            if name in WAITS:
                page.locator(WAITS[name]).wait_for()
                page.locator(TOPS[name]).evaluate("one => one.scrollIntoView()")
            page.wait_for_function(LOADED)
            if name == "notebook":
                page.locator(".token").nth(14).hover()
                page.locator(".told:not(:empty)").wait_for()
                page.locator(".actograph").screenshot(path=folder / f"{name}.png")
                continue
            page.screenshot(path=folder / f"{name}.png")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTOGRAPH_")}
    with tempfile.TemporaryDirectory() as home:
        arguments = [f"--home={home}", "--host=127.0.0.1", "--port=0", f"--model=demo={MODEL_DIR}"]
        served = up_process([*arguments, "--threads=1"], environment | {"HF_HUB_OFFLINE": "1"})
        with served as url, Client(url, "") as client:
            take(url, drain(client, Path(home)), options.out, dark=options.dark)


if __name__ == "__main__":
    main()
