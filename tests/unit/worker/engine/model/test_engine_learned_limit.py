"""What batches that failed and batches that went through say about the next."""

import random

from worker.engine.model.memory import LearnedLimit


def test_nothing_is_known_before_a_failure() -> None:
    limit = LearnedLimit()
    limit.passed(10**12)
    assert limit.most_samples(1) is None


def test_after_a_failure_as_much_is_chosen_as_went_through() -> None:
    limit = LearnedLimit()
    limit.failed(800, 8)
    assert limit.most_samples(100) == 4  # half, while nothing has gone through
    limit.passed(600)
    assert limit.most_samples(100) == 6
    assert limit.most_samples(200) == 3  # of samples that take twice as much, half as many
    assert limit.most_samples(10**6) == 1
    three = LearnedLimit()
    three.failed(30, 3)
    assert three.most_samples(10) == 2


def test_a_later_success_or_failure_elsewhere_does_not_raise_the_bound() -> None:
    limit = LearnedLimit()
    limit.passed(500)
    limit.failed(800, 8)
    assert limit.most_samples(100) == 5  # what went through before counts, too
    limit.passed(3000)  # one long sample that was run alone: at other times less is free
    limit.failed(5000, 1)
    limit.passed(800)
    assert limit.most_samples(100) == 5
    limit.failed(400, 2)
    assert limit.most_samples(100) == 2


def test_what_failed_is_never_chosen_again_and_what_is_chosen_never_shrinks_by_success() -> None:
    draw = random.Random(3)
    for _ in range(200):
        limit, failed = LearnedLimit(), []
        for _ in range(30):
            need = draw.randint(1, 5000)
            before = limit.most_samples(7)
            if draw.random() < 0.4:
                limit.failed(need, draw.randint(1, 9))
                failed.append(need)
            else:
                limit.passed(need)
                assert before is None or (limit.most_samples(7) or 0) >= before
            one = draw.randint(1, 300)
            chosen = limit.most_samples(one)
            assert (chosen is None) == (not failed)
            if chosen is not None and chosen > 1:
                assert chosen * one < min(failed)
