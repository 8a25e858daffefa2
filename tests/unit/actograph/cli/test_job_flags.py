"""Jobs made from flags, and flags that are refused."""

import json
from pathlib import Path

import pytest

from actograph.cli.job_flags import draft_of
from actograph.contract.errors import InvalidRequest
from actograph.contract.job_options import capture_of, conditions_of, interventions_of


def test_flags_win_and_leave_the_rest_alone(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    spec = {"kind": "capture", "sampling": {"seed": 3, "top_p": 0.5}, "dataset": {"hub": "o/n", "split": "x"}}
    path.write_text(json.dumps(spec))
    assert draft_of(spec=str(path), top_p=0.0, dataset="path:a.jsonl").body == {
        "kind": "capture",
        "sampling": {"seed": 3, "top_p": 0.0},
        "dataset": {"path": "a.jsonl"},
    }
    path.write_text('{"capture": ["x"]}')
    with pytest.raises(InvalidRequest, match=r"capture.points cannot be set, as capture is not an object"):
        draft_of(spec=str(path), capture="resid_post@all")


def test_flags_set_the_fields_of_the_spec() -> None:
    same = {
        "model": "m", "task": "other", "limit": 7, "offset": 2, "num_fewshot": 1, "epochs": 4,
        "tools": "calculator", "tool_format": "annotations", "max_turns": 3, "text_field": "body",
        "truncate": True, "priority": 1,
    }  # fmt: skip
    sampling = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 11}
    drafted = draft_of(
        **same, **sampling, thinking=True, chat_template=False, tag=["a"], mode="prefill", prompt=["p"],
        expires_after="7d", scorer=["numeric"], capture="attn_in,resid_post.1@0,2",
    )  # fmt: skip
    assert drafted.uploads == {}
    assert drafted.body == same | {
        "kind": "capture", "sampling": sampling, "enable_thinking": True, "apply_chat_template": False,
        "tags": ["a"], "inputs": [{"prompt": "p"}], "expires_after": {"seconds": 7 * 86400},
        "scorers": ["numeric"],
        "capture": {"points": ["attn_in"], "hooks": ["resid_post.1"], "layers": [0, 2], "mode": "prefill"},
    }  # fmt: skip


def test_saes_and_readouts(subtests: pytest.Subtests) -> None:
    assert draft_of(
        kind="capture", prompt=["p"], sae=["res-8@resid_post.8:32", "other"], readout=["truth@embed", "vec_1"]
    ).body == {
        "kind": "capture", "inputs": [{"prompt": "p"}],
        "capture": {
            "saes": [{"sae": "res-8", "hook": "resid_post.8", "top": 32}, {"sae": "other"}],
            "readouts": [{"vector": "truth", "hook": "embed"}, {"vector": "vec_1"}],
        },
    }  # fmt: skip
    assert draft_of(task="other", capture="resid_post@3", sae=["a:5"]).body["capture"] == {
        "points": ["resid_post"], "layers": [3], "saes": [{"sae": "a", "top": 5}],
    }  # fmt: skip
    for flag, text in (
        ("sae", "a@b@c"),
        ("sae", "a:many"),
        ("sae", "@embed"),
        ("readout", "@embed"),
        ("readout", ""),
    ):
        with (
            subtests.test(flag=flag, text=text),
            pytest.raises(InvalidRequest, match=r"is not (NAME|VECTOR)"),
        ):
            draft_of(kind="capture", prompt=["p"], **{flag: [text]})


def test_capture(subtests: pytest.Subtests) -> None:
    for text, found in {
        "attn_in,mlp_in@8,12,16": {"points": ["attn_in", "mlp_in"], "layers": [8, 12, 16]},
        "resid_post@all": {"points": ["resid_post"], "layers": "all"},
        "resid_post@8:20:4": {"points": ["resid_post"], "layers": "8:20:4"},
        "embed": {"points": ["embed"]},
        "mlp_in.3, embed": {"points": ["embed"], "hooks": ["mlp_in.3"]},
        "model.layers[8].mlp.output": {"hooks": ["model.layers[8].mlp.output"]},
    }.items():
        with subtests.test(text):
            assert capture_of(text) == found
    for text in ("", "@8", " , @all", "mlp_in.3@all"):
        with subtests.test(text), pytest.raises(InvalidRequest, match="points@layers"):
            capture_of(text)


def test_conditions(subtests: pytest.Subtests) -> None:
    for typed, found in [
        (["plain"], [{"name": "plain"}]),
        (["EP02:suffix=So: is a=b, or c?"], [{"name": "EP02", "suffix": "So: is a=b, or c?"}]),
        (["a", "b:tools=calculator"], [{"name": "a"}, {"name": "b", "tools": "calculator"}]),
        (["b:tools=calculator,stock"], [{"name": "b", "tools": ["calculator", "stock"]}]),
        (
            ["hot:temperature=0.7", "hot:top_k=5", "hot:prefix="],
            [{"name": "hot", "sampling": {"temperature": 0.7, "top_k": 5}, "prefix": ""}],
        ),
    ]:
        with subtests.test(typed[0]):
            assert conditions_of(typed) == found
    for text in (":suffix=x", "a:b", "a:colour=red", "a:top_k=many"):
        with subtests.test(text), pytest.raises(InvalidRequest, match="condition"):
            conditions_of([text])


def test_conditions_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "conditions.json"

    def conditions(*typed: str) -> object:
        return draft_of(condition=list(typed), conditions=path).body["conditions"]

    path.write_text(json.dumps({"paper": "x", "stimuli": {"EP02": "It matters."}}))
    stimuli = [{"name": "EP02", "suffix": "It matters."}]
    assert conditions() == [{"name": "baseline"}, *stimuli]
    assert conditions("plain") == [{"name": "plain"}, *stimuli]
    path.write_text('[{"name": "a"}, {"name": "b", "system": "x"}]')
    assert conditions() == [{"name": "a"}, {"name": "b", "system": "x"}]
    path.write_text('{"a": "b"}')
    with pytest.raises(InvalidRequest, match="stimuli"):
        conditions()


def test_datasets(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a\n")
    for typed, found in {
        "file_1": {"file_id": "file_1"},
        "path:a/b.jsonl": {"path": "a/b.jsonl"},
        "hub:openai/gsm8k": {"hub": "openai/gsm8k"},
        "hub:openai/gsm8k:main:test": {"hub": "openai/gsm8k", "config": "main", "split": "test"},
        "hub:o/n::test": {"hub": "o/n", "split": "test"},
    }.items():
        with subtests.test(typed):
            assert draft_of(dataset=typed).body == {"kind": "evaluation", "dataset": found}
    assert draft_of(fewshot_dataset=str(path)).uploads == {"fewshot_dataset": path}
    with pytest.raises(InvalidRequest, match="dataset: no file"):
        draft_of(dataset="none.jsonl")


def test_a_job_may_be_a_yaml_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("kind: capture\nmodel: m\ninputs: [{prompt: one}]\nsampling: {max_tokens: 3}\n")
    assert draft_of(spec=str(path), max_tokens=5).body == {
        "kind": "capture", "model": "m", "inputs": [{"prompt": "one"}], "sampling": {"max_tokens": 5},
    }  # fmt: skip
    path.write_text("- one")
    with pytest.raises(InvalidRequest, match=r"job\.yaml is not a mapping of fields"):
        draft_of(spec=str(path))


def test_files_that_hold_no_spec(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "spec.json"
    for content, reason in {"{": "not JSON", "[1]": "is not a JSON object", None: "No such file"}.items():
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        with subtests.test(reason), pytest.raises((InvalidRequest, OSError), match=reason):
            draft_of(spec=str(path))


def test_flags_of_the_stored_rows(subtests: pytest.Subtests) -> None:
    for typed, due in [
        ("50", {"first": 50}), ("first:50", {"first": 50}), ("1,5,9", {"indices": [1, 5, 9]}),
        ("7,", {"indices": [7]}),
    ]:  # fmt: skip
        with subtests.test(typed):
            body = draft_of(prompt=["p"], features=typed, stats=True, dtype="float16").body
            assert body["capture"] == {"features": due, "stats": True, "dtype": "float16"}
    for typed in ("first", "1;2", "first:1,2", ""):
        with subtests.test(typed), pytest.raises(InvalidRequest, match="use 50 for the first 50"):
            draft_of(prompt=["p"], features=typed)
    body = draft_of(prompt=["p"], capture="model.layers.{i}.mlp.up_proj.output@8,12").body
    assert body["capture"] == {"hooks": ["model.layers.{i}.mlp.up_proj.output"], "layers": [8, 12]}


def test_stimuli_choose_their_place_in_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "stimuli.json"
    for place in ("suffix", "prefix", "system"):
        path.write_text(json.dumps({"stimuli": {"a": "It matters."}, "field": place}))
        made = draft_of(task="gsm8k", conditions=path).body["conditions"]
        assert made == [{"name": "baseline"}, {"name": "a", place: "It matters."}]
    path.write_text(json.dumps({"stimuli": {"a": "x"}, "field": "prefx"}))
    with pytest.raises(InvalidRequest, match="Did you mean 'prefix'"):
        draft_of(task="gsm8k", conditions=path)


def test_steering_in_short() -> None:
    """A plain coefficient multiplies the vector; a percentage is a share of each row's norm."""
    given = {"hook": "resid_post.3", "op": "add", "vector_id": "truth"}
    for text, more in [
        ("truth@resid_post.3*4", {"coefficient": 4.0}),
        ("truth@resid_post.3*-2.5@generated", {"coefficient": -2.5, "positions": "generated"}),
        ("truth@resid_post.3*50%", {"coefficient": 0.5, "scale_by": "row_norm"}),
        ("truth@resid_post.3*-5%@all", {"coefficient": -0.05, "scale_by": "row_norm", "positions": "all"}),
    ]:
        assert interventions_of(text) == [given | more]
        assert conditions_of([f"on:steer={text}"]) == [{"name": "on", "interventions": [given | more]}]
    latent = {"hook": "resid_post.3", "op": "add", "sae": "res-3", "latent": 4711, "coefficient": 4.0}
    assert interventions_of("sae:res-3:4711@resid_post.3*4") == [latent]
    assert conditions_of(["on:steer=sae:res-3:4711@resid_post.3*4"])[0]["interventions"] == [latent]
    for text in ("truth@resid_post.3*%", "truth@resid_post.3*4%%", "truth@resid_post.3*half", "truth*4"):
        with pytest.raises(InvalidRequest, match=r"\*50% for half of each row's norm"):
            interventions_of(text)


def test_an_adapter_belongs_to_a_model() -> None:
    assert draft_of(model="org/base", adapter="sad").body["model"] == "org/base+sad"
    with pytest.raises(InvalidRequest, match="name its base with --model"):
        draft_of(adapter="sad")
