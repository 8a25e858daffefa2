"""What the bench of chat clients would say of a leak, and of answers that were mixed up."""

import pytest

from tests.support.chat_load import Answer, TokenCheck, question
from tests.support.process_watch import Reading, growth


def readings(kib_per_chat: float) -> list[Reading]:
    return [
        Reading(
            done=done,
            rss_bytes=int(2**27 + 1024 * kib_per_chat * done),
            handles=20 + done // 500,
            threads=8,
        )
        for done in range(0, 2000, 20)
    ]


def test_growth_is_told_by_its_slope_and_by_its_ends() -> None:
    grown = growth(readings(5.0), warm_up=500)
    assert grown["rss_kib_per_1000_chats"] == pytest.approx(5000, rel=0.01)
    assert grown["rss_end_to_start"] > 1.03
    assert grown["handles_end"] - grown["handles_start"] == 1
    flat = growth(readings(0.0), warm_up=500)
    assert flat["rss_kib_per_1000_chats"] == 0 and flat["rss_end_to_start"] == 1
    with pytest.raises(SystemExit, match="too few chats"):
        growth(readings(0.0), warm_up=1990)


def answer(number: int, text: str, session_id: str | None) -> Answer:
    return Answer(
        number=number,
        text=text,
        completion_tokens=len(text),
        session_id=session_id,
        sent_at=0.0,
        seconds=1.0,
        first_text_seconds=None,
    )


def test_an_answer_is_compared_with_the_tokens_of_its_own_session() -> None:
    stored = {
        f"s{number}": question(number) + said for number, said in ((1, "three"), (2, "five"), (3, "seven"))
    }
    check = TokenCheck(
        lambda session_id: [ord(letter) for letter in stored[session_id]], lambda ids: "".join(map(chr, ids))
    )
    check(answer(1, "three", "s1"))
    assert not check.mixed
    check(answer(2, "five", "s3"))  # another's
    check(answer(2, "fine", "s2"))  # not what was said
    check(answer(4, "nine", None))
    check(answer(1, "three", "s1"))  # once more
    assert [text.split(":")[0] for text in check.mixed] == ["chat 2", "chat 2", "chat 4", "chat 1"]


@pytest.mark.parametrize("decoded", ["2+3=5</think>five", "2+3=5five"])
def test_marks_count_neither_where_tokenizers_show_them_nor_where_they_do_not(decoded: str) -> None:
    stored = question(2) + decoded
    check = TokenCheck(lambda _: [ord(letter) for letter in stored], lambda ids: "".join(map(chr, ids)))
    told = Answer(
        number=2,
        text="2+3=5</think>five",
        completion_tokens=len(decoded),
        session_id="s2",
        sent_at=0.0,
        seconds=1.0,
        first_text_seconds=None,
    )
    check(told)
    assert check.checked == 1
    assert not check.mixed
