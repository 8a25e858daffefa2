"""The session viewer in a browser: time to the first picture, of a change of hook, and memory of the tab.

    python -m bench.viewer --json results.json

Writes a session of 2,048 tokens with 28 layers of 1,024 channels in bfloat16, starts the API on it and drives
Chromium from the system (`chromium` on the PATH) through its debugging protocol, headless. "First picture" is
the time from the navigation to coloured tokens, with a cache of values that is empty in the first round.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import sqlalchemy as sa
from playwright.sync_api import Page, sync_playwright

from actograph.contract.resources import SessionFile, TensorInfo
from bench.session_listing import served
from bench.session_rows import Shape, fill
from storage import migrate
from storage.artifacts.factory import open_store
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.writer import SessionWriter, TensorRows
from storage.tables.models import ArtifactRow, SessionRow
from tests.support.marks import Mark, print_marks, write_result

TOKENS, LAYERS, WIDTH = 2048, 28, 1024
PROMPT = 256
POINT = "resid_post"
ENTRIES = "performance.getEntriesByName"
HEAT = f"() => {ENTRIES}('viewer-heat').length > 0"
#: choose the next hook, and wait for the repainted tokens
CHANGE = """
async () => {
  const hook = document.querySelector("[name=hook]");
  performance.clearMarks("viewer-tokens");
  const start = performance.now();
  hook.selectedIndex = (hook.selectedIndex + 1) % hook.options.length;
  hook.dispatchEvent(new Event("change", { bubbles: true }));
  while (!performance.getEntriesByName("viewer-tokens").length) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}
"""


def write_session(store: ArtifactStore, session_id: str) -> tuple[SessionManifest, list[SessionFile]]:
    """The large session: rows of all layers, 512 tokens at a time."""
    rng = np.random.default_rng(0)
    rows = TOKENS - 1
    hooks = [f"{POINT}.{layer}" for layer in range(LAYERS)]
    manifest = SessionManifest(
        session_id=session_id, job_id="job_bench", sample_id="smp_bench", sample_index=0, model="bench",
        capture={}, capture_sha256="0" * 64, dtype="model", prompt_tokens=PROMPT,
        generated_tokens=TOKENS - PROMPT, seed=0, created_at=int(time.time()),
        tensors={hook: StoredTensor(shape=(rows, WIDTH), dtype="BF16") for hook in hooks},
    )  # fmt: skip
    with SessionWriter(store, session_id) as writer:
        for start in range(0, rows, 512):
            stop = min(start + 512, rows)
            shard = []
            for hook in hooks:
                numbers = rng.standard_normal((stop - start, WIDTH), dtype=np.float32)
                bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
                shard.append(TensorRows(hook, "BF16", bits.shape, start, bits))
            writer.write_shard(shard)
        files = writer.finish(manifest, range(TOKENS))
        assert writer.manifest is not None
        return writer.manifest, files


def prepare(home: Path) -> tuple[str, str]:
    """An index with one row for the large session. Returns the URL of the index and the session's id."""
    url = f"sqlite:///{home / 'actograph.db'}"
    database = Database(url)
    migrate.upgrade(database)
    fill(database, Shape(sessions=1, jobs=1))
    store = open_store((home / "artifacts").absolute().as_uri())
    with database.read() as session:
        session_id = str(session.scalars(sa.select(SessionRow.id)).one())
    manifest, files = write_session(store, session_id)
    infos = {
        name: TensorInfo(shape=list(t.shape), dtype=t.dtype, nbytes=t.nbytes).model_dump()
        for name, t in manifest.tensors.items()
    }
    counts = {"prompt_tokens": PROMPT, "generated_tokens": TOKENS - PROMPT, "rows": TOKENS - 1}
    with database.write() as session:
        session.execute(sa.update(SessionRow).values(hooks=infos, **counts))
        session.execute(sa.delete(ArtifactRow))
        session.execute(sa.insert(ArtifactRow), [{"session_id": session_id, **f.model_dump()} for f in files])
    database.close()
    return url, session_id


def measure(page: Page, base: str, session_id: str) -> dict[str, float]:
    """One visit: milliseconds to the tokens and to the whole heatmap, and of changes of the hook."""
    page.goto(f"{base}/sessions/{session_id}/view", wait_until="commit")
    page.wait_for_function(HEAT, timeout=60_000)
    found = {
        "first_picture_ms": float(page.evaluate(f"{ENTRIES}('viewer-tokens')[0].startTime")),
        "heatmap_ms": float(page.evaluate(f"{ENTRIES}('viewer-heat')[0].startTime")),
    }
    changes = []
    for _ in range(6):
        changes.append(float(page.evaluate(CHANGE)))
        page.wait_for_timeout(300)
    found["hook_change_ms"] = statistics.median(changes)
    devtools = page.context.new_cdp_session(page)
    devtools.send("HeapProfiler.collectGarbage")
    found["tab_heap_mb"] = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
    return found


def renderer_megabytes(browser_id: int) -> float:
    """Private memory of the largest renderer of the browser, in MB."""
    sizes = [0.0]
    for process in psutil.Process(browser_id).children(recursive=True):
        try:
            if "--type=renderer" in process.cmdline():
                sizes.append(process.memory_full_info().uss / 1e6)
        except psutil.Error:
            continue
    return max(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("no chromium on the PATH")
    visits, sizes = [], []
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        url, session_id = prepare(Path(name))
        with served(url, Path(name)) as client:
            for _ in range(options.rounds):
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                visits.append(measure(page, str(client.base_url), session_id))
                sizes.append(renderer_megabytes(os.getpid()))
                browser.close()
    report(options.json, visits, sizes)


def report(path: Path | None, visits: list[dict[str, float]], sizes: list[float]) -> None:
    """Print the figures and write them down."""
    for number, visit in enumerate(visits, start=1):
        print(number, {name: round(value, 1) for name, value in visit.items()})
    middle = {name: statistics.median(visit[name] for visit in visits) for name in visits[0]}
    marks = [
        Mark(name="first picture, empty cache, ms", measured=visits[0]["first_picture_ms"], at_most=1000),
        Mark(name="first picture, median, ms", measured=middle["first_picture_ms"], at_most=1000),
        Mark(name="change of hook, data there, ms", measured=middle["hook_change_ms"], at_most=100),
        Mark(name="memory of the tab, MB", measured=max(sizes), at_most=300),
    ]
    print_marks(marks)
    settings = {"tokens": TOKENS, "layers": LAYERS, "width": WIDTH, "rounds": len(visits)}
    result: dict[str, Any] = {"settings": settings, "visits": visits, "tab_mb": sizes, "median": middle}
    write_result(path, result, marks)


if __name__ == "__main__":
    main()
