"""Runs under inspect_ai's own Python: the data frames of a log, and its scores after `inspect_ai.score`.

    inspect_frames.py LOG

Writes JSON to standard output.
"""

import importlib
import json
import sys


def main(log: str) -> None:
    inspect = importlib.import_module("inspect_ai")
    analysis = importlib.import_module("inspect_ai.analysis")
    scorer = importlib.import_module("inspect_ai.scorer")
    messages = analysis.messages_df(log, quiet=True)
    events = analysis.events_df(log, quiet=True)
    whole = importlib.import_module("inspect_ai.log").read_eval_log(log)
    scored = inspect.score(whole, scorer.match(), action="append", display="none")
    found = {
        "messages": messages[["sample_id", "role", "content"]].to_dict("records"),
        "events": events[["sample_id", "event"]].to_dict("records"),
        "scored": sorted(scored.samples[0].scores),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
