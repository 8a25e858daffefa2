"""How answers are judged: text in, verdict out. It stands on the ground floor, without torch, because
the worker, the API and the command line all score."""
