"""Times of the page in a browser, with a large index and a large session.

    python -m bench.page_speed --json bench/results/page-speed.json

Makes a store of 10,000 ended jobs, 100,000 sessions, a job of 2,638 samples and a session of 2,048 tokens
with 28 layers of width 1,024, serves it, and opens the pages in the `chromium` of the PATH. Reported are
medians, with quartiles: the time of the document's answer alone; from the navigation to the painted and
complete document; and of the session viewer the first picture, the change of a hook whose numbers were read,
the slowest step of a scroll, and the memory of all renderer processes of a browser with this tab alone.
"""

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from playwright.sync_api import Browser, Page, sync_playwright

from bench.marks import Mark, median_and_quartiles, print_marks, write_result
from bench.service import Service
from storage.artifacts.factory import open_store
from storage.index.database import Database
from tests.support import large_store
from tests.support.large_store import LargeStore, Sizes
from tests.support.processes import words_of

#: marks, in milliseconds and in bytes
MOST_SERVER, MOST_CONTENT, MOST_PICTURE, MOST_STEP, MOST_BYTES = 200, 1000, 1000, 100, 300_000_000
STEPS = 40
#: a wait beyond it is a fault, in milliseconds
DEADLINE = 120_000

CONTENT = """() => {
  const [page] = performance.getEntriesByType("navigation");
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  return paint && page.domContentLoadedEventEnd && Math.max(paint.startTime, page.domContentLoadedEventEnd);
}"""
MARK = "(name) => performance.getEntriesByName(name)[0]?.startTime"
#: time from a choice to the end of the frame that shows it
CHOOSE = """async (hook) => {
  const field = document.querySelector("#viewer-controls [name=hook]");
  performance.clearMarks();
  const began = performance.now();
  field.value = hook;
  field.dispatchEvent(new Event("change", { bubbles: true }));
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  while (!performance.getEntriesByName("viewer-loaded").length) await frame();
  await frame();
  return performance.now() - began;
}"""
SCROLL = """async ([selector, steps]) => {
  const box = document.querySelector(selector);
  let slowest = 0;
  for (let step = 1; step <= steps; step++) {
    const began = performance.now();
    box.scrollTop = ((box.scrollHeight - box.clientHeight) * step) / steps;
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    slowest = Math.max(slowest, performance.now() - began);
  }
  box.scrollTop = 0;
  return slowest;
}"""


@contextmanager
def served(sizes: Sizes) -> Iterator[tuple[str, LargeStore]]:
    """Make the store and serve it, without workers. Yields the service's address."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        service = Service(home, worker_module="worker", workers=0)
        database, store = Database.of(service.settings), open_store(service.settings.effective_artifact_url)
        began = time.monotonic()
        made = large_store.make(database, store, sizes)
        database.close()
        print(f"the store was made in {time.monotonic() - began:.0f} s", flush=True)
        with service:
            yield service.url, made


def addresses(url: str, made: LargeStore) -> dict[str, str]:
    """Name -> address of each page."""
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:

        def last_of(path: str, **params: Any) -> str:
            return str(client.get(path, params=params).raise_for_status().json()["last_id"])

        sample = last_of(f"/v1/jobs/{made.job_id}/samples")
        # one in a thousand has the tag
        middle = last_of("/v1/activations/sessions", tag="rare", limit=50)
    paths = {
        "overview": "/",
        "jobs": "/jobs",
        "jobs of a status and a model": "/jobs?status=queued&model=example/usual",
        "jobs with a text": "/jobs?text=gsm8k",
        "job of many samples": f"/jobs/{made.job_id}",
        "sessions": "/sessions",
        "sessions of a verdict": "/sessions?correct=yes&condition=a",
        "sessions, none matches": "/sessions?condition=none",
        "sessions, the middle": f"/sessions?after={middle}",
        "sample": f"/jobs/{made.job_id}/samples/{sample}",
        "storage": "/storage",
        "session with the viewer": f"/sessions/{made.session_id}",
    }
    return {name: f"{url}{path}" for name, path in paths.items()}


def server_times(pages: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Milliseconds from each request to the last byte of its answer, in a random order in every round."""
    taken: dict[str, list[float]] = {name: [] for name in pages}
    with httpx.Client(headers={"Accept": "text/html"}, trust_env=False, timeout=60) as client:
        for number in range(rounds + 1):
            for name in random.sample(list(pages), len(pages)):
                began = time.perf_counter()
                client.get(pages[name]).raise_for_status()
                if number:  # the first round warms up
                    taken[name].append(1000 * (time.perf_counter() - began))
    return taken


def await_number(page: Page, script: str, argument: Any = None) -> float:
    """Wait until a script returns a number."""
    return float(page.wait_for_function(script, arg=argument, timeout=DEADLINE).json_value())


def content_times(browser: Browser, pages: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Milliseconds from each navigation to the painted and complete document."""
    taken: dict[str, list[float]] = {name: [] for name in pages}
    for number in range(rounds + 1):
        for name, address in pages.items():
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(address, wait_until="commit")
            if number:
                taken[name].append(await_number(page, CONTENT))
            page.close()
    return taken


def viewer_times(open_browser: Callable[[], Browser], address: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds and bytes of the session viewer, in a new browser in every round."""
    taken: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        taken.setdefault(name, []).append(value)

    for _ in range(rounds):
        browser = open_browser()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address, wait_until="commit")
        note("first picture (ms)", await_number(page, MARK, "viewer-tokens"))
        note("whole heatmap (ms)", await_number(page, MARK, "viewer-loaded"))
        hooks = page.locator("#viewer-controls [name=hook] option").all_text_contents()
        for hook in random.sample(hooks, min(5, len(hooks))):
            note("change of the hook (ms)", page.evaluate(CHOOSE, hook))
        for selector, name in ((".tokens", "tokens"), ("html", "page")):
            note(f"slowest step of a scroll, {name} (ms)", page.evaluate(SCROLL, [selector, STEPS]))
        note("memory of the tab (bytes)", renderer_bytes())
        browser.close()
    return taken


def renderer_bytes() -> int:
    """Proportional share of memory (PSS) of all renderer processes below this one."""
    below = psutil.Process().children(recursive=True)
    return sum(one.memory_full_info().pss for one in below if "--type=renderer" in words_of(one))


def summary(taken: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    found = {}
    for name, values in taken.items():
        middle, (low, high) = median_and_quartiles(values)
        found[name] = {"median": middle, "low": low, "high": high, "most": max(values)}
    return found


def marks_of(results: dict[str, dict[str, dict[str, float]]]) -> list[Mark]:
    bounds = {"server": MOST_SERVER, "content": MOST_CONTENT}
    marks = [
        Mark(name=f"{name}, {kind} (ms)", measured=one["median"], at_most=bounds[kind])
        for kind in bounds
        for name, one in results[kind].items()
    ]
    of_viewer = {
        "first picture": MOST_PICTURE,
        "change": MOST_STEP,
        "slowest": MOST_STEP,
        "memory": MOST_BYTES,
    }
    for name, one in results["viewer"].items():
        bound = next((most for begin, most in of_viewer.items() if name.startswith(begin)), None)
        if bound is not None:
            marks.append(Mark(name=f"viewer, {name}", measured=one["median"], at_most=bound))
    return marks


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--rounds", type=int, default=15, help="of requests; a third of them in the browser")
    for name, value in vars(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    sizes = Sizes(**{name: getattr(options, name) for name in vars(Sizes())})
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is not on the PATH")
    in_browser = max(2, options.rounds // 3)
    with served(sizes) as (url, made), sync_playwright() as playwright:
        pages = addresses(url, made)

        def launch() -> Browser:
            return playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])

        taken = {"server": server_times(pages, options.rounds)}
        browser = launch()
        taken["content"] = content_times(browser, pages, in_browser)
        browser.close()
        taken["viewer"] = viewer_times(launch, pages["session with the viewer"], in_browser)
    results = {kind: summary(found) for kind, found in taken.items()}
    for kind, found in results.items():
        print(f"\n{kind:44}{'median':>14}{'quartiles':>34}{'most':>14}")
        for name, one in found.items():
            quartiles = f"{one['low']:,.1f} to {one['high']:,.1f}"
            print(f"{name:44}{one['median']:14,.1f}{quartiles:>34}{one['most']:14,.1f}")
    print()
    marks = marks_of(results)
    print_marks(marks)
    settings = {**vars(sizes), "rounds": options.rounds, "rounds_in_browser": in_browser}
    write_result(options.json, {"settings": settings, "results": results}, marks)


if __name__ == "__main__":
    main()
