"""`actograph eval score`: anyone's completions, without a service."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actograph.cli.main import main

LINES: list[dict[str, Any]] = [
    {"id": "a", "completion": "48+24=72\n#### 72", "gold": "Natalia sold 48+24 = 72.\n#### 72"},
    {"id": 2, "completion": "The answer is $5.", "gold": 5},
    {"id": "c", "completion": "no idea", "gold": "5", "model": "passed over"},
]


def jsonl(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_scores_on_stdout_and_accuracies_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "score", str(jsonl(tmp_path / "in.jsonl", LINES))]) == 0
    said = capsys.readouterr()
    assert read(said.out) == [
        {
            "id": "a",
            "scores": {
                "strict-match": {"answer": "72", "correct": True},
                "flexible-extract": {"answer": "72", "correct": True},
                "numeric": {"answer": "72", "correct": True},
            },
        },
        {
            "id": 2,
            "scores": {
                "strict-match": {"answer": None, "correct": False},
                "flexible-extract": {"answer": "$5.", "correct": True},
                "numeric": {"answer": "5", "correct": True},
            },
        },
        {
            "id": "c",
            "scores": {
                "strict-match": {"answer": None, "correct": False},
                "flexible-extract": {"answer": None, "correct": False},
                "numeric": {"answer": None, "correct": False},
            },
        },
    ]
    assert [line.split() for line in said.err.splitlines()] == [
        ["SCORER", "ACCURACY", "STDERR", "UNPARSED", "COMPLETIONS"],
        ["strict-match", "0.3333", "0.3333", "2", "3"],
        ["flexible-extract", "0.6667", "0.3333", "1", "3"],
        ["numeric", "0.6667", "0.3333", "1", "3"],
    ]


def test_chosen_scorers_and_an_output_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = jsonl(tmp_path / "in.jsonl", [LINES[0] | {"generated_tokens": 75}])
    out = tmp_path / "out.jsonl"
    efficiency = '{"name": "efficiency", "target_tokens": 50, "max_tokens": 100}'
    arguments = ["eval", "score", str(source), "--scorer", "numeric", "--scorer", efficiency]
    assert main([*arguments, "--output", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert read(out.read_text())[0]["scores"] == {
        "numeric": {"answer": "72", "correct": True},
        "efficiency": {"answer": "75", "correct": False, "value": 0.5},
    }


def test_the_form_of_gsm8k_cot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = jsonl(tmp_path / "in.jsonl", [LINES[1]])
    assert main(["eval", "score", str(source), "--scorer", "strict-match", "--form", "gsm8k_cot"]) == 0
    (line,) = read(capsys.readouterr().out)
    assert line["scores"]["strict-match"]["correct"] is False  # `$5.` is none of lm-eval's numbers


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = b"\xef\xbb\xbf" + b"\n\n".join(json.dumps(line).encode() for line in LINES)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["eval", "score", "-", "--scorer", "numeric"]) == 0
    assert [line["id"] for line in read(capsys.readouterr().out)] == ["a", 2, "c"]


def test_ids_in_several_lines_are_scored_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = jsonl(tmp_path / "in.jsonl", [*LINES, LINES[0], LINES[0], LINES[2], LINES[0] | {"id": "2"}])
    assert main(["eval", "score", str(source), "--scorer", "numeric"]) == 0
    said = capsys.readouterr()
    assert [line["id"] for line in read(said.out)] == ["a", 2, "c", "a", "a", "c", "2"]
    assert said.err.splitlines()[-1] == ("2 ids occur on several lines; each line is scored by itself")


def test_line_ends_of_windows_and_characters_of_any_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    lines = [
        LINES[0] | {"id": "\ud800"},
        LINES[1] | {"completion": "it is\u2028\x85 \x00 5 🍎"},
        LINES[1] | {"gold": -1234.50, "completion": "#### \u22121,234.5"},
    ]
    source.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(line).encode() for line in lines))
    assert main(["eval", "score", str(source), "--scorer", "numeric"]) == 0
    scored = read(capsys.readouterr().out)
    assert [line["id"] for line in scored] == ["\ud800", 2, 2]
    assert [line["scores"]["numeric"]["correct"] for line in scored] == [True] * 3


def test_a_line_at_fault_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for bad, reason in [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not UTF-8"),
        (b'{"id": 1, "completion": "5"}', "gold missing"),
        (b'{"id": 1}', "completion and gold missing"),
        (b'{"completion": "5", "gold": 5}', "id missing"),
        (b'{"id": null, "completion": "5", "gold": 5}', "id is neither"),
        (b'{"id": 1, "completion": 5, "gold": 5}', "completion is not a string"),
        (b'{"id": 1, "completion": "5", "gold": [5]}', "gold is neither"),
        (b'{"id": 1, "completion": "5", "gold": true}', "gold is neither"),
        (b'{"id": 1, "completion": "5", "gold": NaN}', "NaN is not JSON"),
        (b'{"id": 1, "completion": "5", "gold": "five"}', "the target 'five' is not a number"),
        (
            b'{"id": 1, "completion": "5", "gold": ' + b"9" * 5000 + b"}",
            "not valid JSON here: a number is too long",
        ),
        (b'{"id": 1, "completion": "5", "gold": 5, "generated_tokens": "x"}', "generated_tokens is not"),
    ]:
        with subtests.test(bad=bad, reason=reason):
            source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
            source.write_bytes(json.dumps(LINES[0]).encode() + b"\n\n" + bad + b"\n")
            for target in ([], ["--output", str(out)]):
                assert main(["eval", "score", str(source), *target]) == 1
                said = capsys.readouterr()
                assert said.out == ""
                (line,) = said.err.splitlines()
                assert line.startswith(f"error: {source}: line 3: {reason}")
            assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--scorer", "strict"], "unknown scorer 'strict'; use one of strict-match, flexible-extract"),
        (["--scorer", "efficiency"], "target_tokens: Field required"),
        (["--scorer", "{"], "not valid JSON"),
        (["--scorer", '{"name": "efficiency", "target_tokens": 5}'], "efficiency needs max_tokens"),
        (["--scorer", "numeric", "--scorer", "numeric"], "give one of them a label"),
    ],
)
def test_scorers_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert main(["eval", "score", str(jsonl(tmp_path / "in.jsonl", LINES)), *arguments]) == 1
    assert reason in capsys.readouterr().err


def test_an_empty_and_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "score", str(jsonl(tmp_path / "in.jsonl", []))]) == 1
    assert "there are no completions" in capsys.readouterr().err
    assert main(["eval", "score", str(tmp_path / "none.jsonl")]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.integration
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """40 MB of completions and of ids, and not 20 MB more than the imports take."""
    source = tmp_path / "in.jsonl"
    with source.open("w") as stream:
        for number in range(8000):
            line = {"id": f"{number:02000}", "completion": "word " * 600 + "#### 5", "gold": 5}
            stream.write(json.dumps(line) + "\n")
    program = (
        "import resource, sys\n"
        "from actograph.cli.main import main\n"
        "import actograph.scoring.recorded, actograph.scoring.scorers\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"code = main(['eval', 'score', {str(source)!r}, '--scorer', 'strict-match',"
        f" '--output', {str(tmp_path / 'out.jsonl')!r}])\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(code, after - before < 20_000)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["0", "True"], ended.stderr
