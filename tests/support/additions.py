"""Additions in the words that the small model was trained on, as a task of its own."""

#: the bare question
TASK = {"name": "additions", "prompt": "{{question}}", "target": "{{answer}}", "scorers": ["numeric"]}


def additions(*pairs: tuple[int, int]) -> list[dict[str, str]]:
    """A problem for each pair of numbers."""
    return [
        {
            "question": f"Tom has {a} apples. Mia gives Tom {b} more. How many apples does Tom have now?",
            "answer": f"#### {a + b}",
        }
        for a, b in pairs
    ]
