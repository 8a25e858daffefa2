"""Runs under inspect_ai's own Python: a task with a tool, as Inspect's users write one."""

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool

#: the test has the model say 43 to all of them, so that a probe has two classes
SUMS = [(12, 31), (25, 41), (33, 10), (47, 18)]


@tool
def calculator() -> Tool:
    async def execute(expression: str) -> str:
        """Calculate.

        Args:
            expression: Numbers, + and -.
        """
        return str(sum(int(part) for part in expression.replace("-", "+-").split("+")))

    return execute


@task
def sums() -> Task:
    samples = [
        Sample(
            id=f"sum-{number}",
            input=f"Anna buys {a} stamps and then buys {b} more. How many stamps did Anna buy?",
            target=str(a + b),
        )
        for number, (a, b) in enumerate(SUMS)
    ]
    return Task(
        dataset=MemoryDataset(samples),
        solver=[use_tools(calculator()), generate()],
        scorer=match(numeric=True),
        config=GenerateConfig(temperature=0.0, max_tokens=96),
        epochs=2,
    )
