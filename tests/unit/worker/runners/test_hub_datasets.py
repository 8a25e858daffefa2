"""Datasets of the Hub, loaded from the cache that an earlier download would have left."""

import json
import shutil
from pathlib import Path

import datasets
import pytest

from actograph.contract.errors import InvalidDataset
from actograph.contract.specs import HubDataset
from evals.dataset_rows import DatasetRow
from storage.files.dataset_sources import Uploads
from worker.runners.job_datasets import DatasetReader, hub_split


@pytest.fixture
def cached_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Puts five rows into a fresh cache as `actograph/sums`, config `main`, split `test`."""
    source = tmp_path / "rows.jsonl"
    rows = [{"question": f"q{i}", "answer": f"#### {i}", "id": i} for i in range(5)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    built = tmp_path / "built"
    datasets.load_dataset("json", data_files={"test": str(source)}, cache_dir=str(built))
    (info_file,) = built.glob("json/*/0.0.0/*/dataset_info.json")
    cache = tmp_path / "cache"
    folder = cache / "actograph___sums" / "main" / "0.0.0" / info_file.parent.name
    folder.mkdir(parents=True)
    info = json.loads(info_file.read_text()) | {"dataset_name": "sums", "config_name": "main"}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    shutil.copy(info_file.with_name("json-test.arrow"), folder / "sums-test.arrow")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    return "actograph/sums"


def rows_of(dataset: HubDataset, *, limit: int | None = None, offset: int = 0) -> list[DatasetRow]:
    return DatasetReader(Uploads(None, None), []).rows(dataset, "gsm8k", limit=limit, offset=offset)  # type: ignore[arg-type]


def test_rows_of_a_split(cached_dataset: str) -> None:
    rows = rows_of(HubDataset(hub=cached_dataset, config="main", split="test"))
    assert [(row.index, row.question, row.answer) for row in rows] == [
        (i, f"q{i}", f"#### {i}") for i in range(5)
    ]


def test_a_window_of_a_split(cached_dataset: str) -> None:
    rows = rows_of(HubDataset(hub=cached_dataset, config="main"), limit=2, offset=3)
    assert [row.index for row in rows] == [3, 4]


@pytest.mark.parametrize(
    ("config", "split", "reason"),
    [("other", "test", "for config 'other'"), ("main", "train", 'Unknown split "train"')],
)
def test_an_unknown_config_or_split_is_refused(
    cached_dataset: str, config: str, split: str, reason: str
) -> None:
    with pytest.raises(InvalidDataset, match=reason) as caught:
        hub_split(HubDataset(hub=cached_dataset, config=config, split=split))
    assert caught.value.param == "dataset"


def test_a_hub_out_of_reach_says_what_to_do(cached_dataset: str) -> None:
    with pytest.raises(InvalidDataset, match=r"Couldn't reach 'actograph/others'.*upload the rows"):
        hub_split(HubDataset(hub="actograph/others"))


def test_a_folder_of_the_worker_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "private" / "data"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidDataset, match="folder in the worker's working directory"):
        hub_split(HubDataset(hub="private/data", split="train"))
