"""Runs under inspect_ai's own Python: an evaluation by its OpenAI provider.

    inspect_evaluation.py URL MODEL MAX_TOKENS LOGS < ROWS

ROWS are GSM8K lines; the answer is a JSON list of {completion, correct}, in their order.
"""

import importlib
import json
import sys


def main() -> None:
    url, model, max_tokens, logs = sys.argv[1:]
    rows = [json.loads(line) for line in sys.stdin if line.strip()]
    inspect = importlib.import_module("inspect_ai")
    dataset = importlib.import_module("inspect_ai.dataset")
    solver = importlib.import_module("inspect_ai.solver")
    scorer = importlib.import_module("inspect_ai.scorer")
    samples = [
        dataset.Sample(input=row["question"], target=row["answer"].rpartition("#### ")[2], id=index)
        for index, row in enumerate(rows, start=1)
    ]
    task = inspect.Task(
        dataset=dataset.MemoryDataset(samples),
        solver=solver.generate(),
        scorer=scorer.match(numeric=True),
        config=importlib.import_module("inspect_ai.model").GenerateConfig(
            temperature=0.0, max_tokens=int(max_tokens)
        ),
    )
    (log,) = inspect.eval(
        task,
        model=f"openai/{model}",
        model_base_url=url,
        model_args={"responses_api": False},
        log_dir=logs,
        display="none",
    )
    assert log.status == "success", log.error
    found = [
        {"completion": sample.output.completion, "correct": sample.scores["match"].value == "C"}
        for sample in sorted(log.samples, key=lambda sample: sample.id)
    ]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
