"""OpenAI's chat, completions and batches.

A chat enters in `chat_requests` (`api/routes/chat.py` calls it), which turns it into a job and submits it.
It leaves in `chat_results` as one answer, or in `chat_stream` as events while the text is generated.
Between the two, `chat_watch` follows the worker. A batch has a job too: `batch_input` reads its file,
`batch_output` writes the answers, and `batches` moves it from step to step.
"""
