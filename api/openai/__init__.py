"""OpenAI's chat, completions, responses and batches.

`api/routes/chat.py` takes a chat, `api/kinds/chat.py` makes a job of it, and `chat_watch` submits it and
follows the worker. It leaves in `chat_results` as one answer, or in `chat_stream` as events while the text is
generated. A response is a chat in another form: `response_requests` translates its request,
`response_answers` and `response_stream` its answer. `batches` moves a batch from step to step:
`api/kinds/batch_lines.py` reads its file, `batch_output` writes the answers.
"""
