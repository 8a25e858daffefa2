"""Counts of an engine as counts of the time between two heartbeats."""

from worker.process.work_rate import WorkRate


def test_windows_have_what_was_added_since_the_last_one() -> None:
    moments = iter([10.0, 15.0, 20.0, 25.0, 30.0])
    rate = WorkRate(lambda: next(moments))

    def window(computed: int, **others: int) -> dict[str, int]:
        told = {"computed_tokens": computed, "generated_tokens": 1, "pass_milliseconds": 2 * computed}
        return rate.numbers(told | others)

    first = window(100, rss_bytes=7)
    assert first == {
        "rss_bytes": 7, "window_computed_tokens": 100, "window_generated_tokens": 1,
        "window_pass_milliseconds": 200, "window_milliseconds": 5000,
    }  # fmt: skip
    assert window(150)["window_computed_tokens"] == 50
    assert window(150)["window_computed_tokens"] == 0
    again = window(30)
    assert (again["window_computed_tokens"], again["window_pass_milliseconds"]) == (30, 60), "a new engine"
