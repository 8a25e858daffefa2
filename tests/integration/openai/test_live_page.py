"""The page of a running chat in a real browser: its text and its readouts as they come."""

import math
from typing import Any

import numpy as np

from actograph.contract.interventions import NewVector
from storage.sessions import vectors
from tests.integration.api.pages import test_browser
from tests.integration.api.pages.test_browser import Tab
from tests.integration.openai.conftest import ASKED, MODEL

pytestmark = test_browser.pytestmark
browser = test_browser.browser


def test_the_page_of_a_running_sample_shows_text_and_readouts(
    service: Any, client: Any, slow: Any, browser: Any
) -> None:
    vector = np.random.default_rng(0).normal(size=service.engine.width_of("resid_post.1")).astype("<f4")
    new = NewVector(name="mood", hook="resid_post.1", vector=vector.tolist())
    with service.database.write() as session:
        vectors.insert(session, new)
    slow.most = 12
    chunks = client.chat.completions.create(
        model=MODEL, messages=ASKED, temperature=0, max_tokens=60, stream=True,
        extra_body={"capture": {"readouts": [{"vector": "mood"}]}, "ignore_eos": True},
    )  # fmt: skip
    first = next(chunks)
    while not first.choices[0].model_extra.get("token_readouts"):
        first = next(chunks)
    (job,) = service.jobs()
    (sample,) = service.samples(job.id)
    tab = Tab(browser, service.url)
    page = tab.page
    page.goto(f"{service.url}/jobs/{job.id}/samples/{sample.id}")
    shown = page.locator("#live-sample")
    shown.get_by_role("cell", name="mood").wait_for()
    page.wait_for_function("document.querySelector('#live-sample pre').textContent.length > 0")
    cells = shown.locator("tbody td").all_inner_texts()
    told = first.choices[0].model_extra["token_readouts"][0]
    assert int(cells[1]) >= told["token"]
    assert shown.locator("polyline").get_attribute("points")
    so_far = shown.locator("pre").inner_text()
    tab.check()
    assert service.jobs()[0].status == "in_progress"
    slow.most = math.inf
    list(chunks)
    page.get_by_role("link", name="Activations").wait_for()  # it reads itself again at the end
    assert page.locator("#live-sample").count() == 0
    (sample,) = service.samples(job.id)
    assert sample.completion.strip().startswith(so_far.strip()[:5])
    page.get_by_text("Readout mood").wait_for()
    assert tab.trouble == []
    page.context.close()
