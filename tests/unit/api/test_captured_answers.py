"""The activations that an answer of OpenAI's routes names."""

from typing import Any

from actograph.contract.resources import Session, TensorInfo
from api.openai import chat_results


def test_savepoints_have_their_own_names_beside_those_of_the_hooks() -> None:
    info = TensorInfo(shape=(3, 8), dtype="F32")
    session = Session.model_construct(id="ses_1", files=[], hooks={"resid_post.2": info, "embed": info})
    row: Any = type("Row", (), {"session_id": "ses_1", "readouts": None})
    points = {"mine": "resid_post.2", "not_kept": "resid_post.0"}
    found = chat_results._captured({"ses_1": session}, row, points)
    assert found["activations_meta"] == {"resid_post.2": info, "embed": info, "mine": info}
    assert chat_results._captured({}, row, points) == {}
