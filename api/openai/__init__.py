"""OpenAI's chat, completions, responses and batches.

A chat enters in `chat_requests` (`api/routes/chat.py` calls it), which turns it into a job and submits it.
It leaves in `chat_results` as one answer, or in `chat_stream` as events while the text is generated.
Between the two, `chat_watch` follows the worker. A response is a chat in another form: `response_requests`
translates its request, `response_answers` and `response_stream` its answer. A batch has a job too:
`batch_input` reads its file, `batch_output` writes the answers, and `batches` moves it from step to step.
"""
