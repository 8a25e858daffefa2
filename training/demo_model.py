"""Train the demo model from scratch, on a CPU, in a few minutes.

    python -m training.demo_model OUT [--steps N] [--seed N] [--threads N]

OUT gets a model folder in the Hub's layout and train_report.json. Needs the `service` extra, with
torch 2.9 or later for its Muon.
"""

import argparse
import json
import logging
import math
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from actograph.demo import MODEL_DIR
from evals.dataset_rows import GOLD
from training.demo_lessons import Lesson, Messages, batches
from training.demo_problems import Problem, held_out_problems
from training.demo_tokenizer import END_OF_TURN, train_tokenizer

CONTEXT_LENGTH = 2048
MUON_RATE = 0.02
ADAMW_RATE = 6e-3
WARMUP_STEPS = 50
IGNORED_LABEL = -100

log = logging.getLogger("training.demo_model")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo model from scratch, on a CPU.")
    parser.add_argument("out", type=Path, help="folder to write the model to")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="torch CPU threads")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    template = (MODEL_DIR / "chat_template.jinja").read_text(encoding="utf-8")
    tokenizer = train_tokenizer(_tokenizer_texts(random.Random(options.seed)), template, CONTEXT_LENGTH)
    model = build_model(tokenizer)
    started = time.perf_counter()
    loss = train(
        model,
        tokenizer,
        batches(rng, renderer(tokenizer), plain_batches=options.steps // 2),
        steps=options.steps,
    )
    seconds = time.perf_counter() - started
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    report = {
        "seed": options.seed,
        "steps": options.steps,
        "threads": options.threads,
        "train_seconds": round(seconds, 1),
        "final_loss": round(loss, 5),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "held_out_problems": len(held_out_problems()),
        "strict_match": {
            "no_thinking": accuracy(model, tokenizer, held_out_problems(), enable_thinking=False),
            "thinking": accuracy(model, tokenizer, held_out_problems(), enable_thinking=True),
        },
    }
    text = json.dumps(report, indent=2)
    (options.out / "train_report.json").write_text(text + "\n", encoding="utf-8")
    log.info("%s", text)


def renderer(tokenizer: Any) -> Any:
    def render(messages: Messages, enable_thinking: bool) -> Any:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=enable_thinking
        )

    return render


def build_model(tokenizer: Any) -> Any:
    """An untrained Qwen3 of three layers with grouped-query attention and tied embeddings."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.04,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def train(model: Any, tokenizer: Any, stream: Iterator[list[Lesson]], *, steps: int) -> float:
    """Minimise the cross-entropy of the completions; returns the mean loss of the last 50 steps.

    Muon moves the layers' matrices, AdamW the rest: measured here, AdamW alone needs about
    three times the steps for the same loss.
    """
    import torch

    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else others).append(parameter)
    rates = {
        torch.optim.Muon(matrices, weight_decay=0.01): MUON_RATE,
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0): ADAMW_RATE,
    }
    model.train()
    losses: list[float] = []
    for step in range(steps):
        for optimizer, peak in rates.items():
            for group in optimizer.param_groups:
                group["lr"] = peak * schedule(step, steps)
        tokens, labels = collate(tokenizer, next(stream))
        # Padding stands on the right, where causal attention never looks: no mask is needed.
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1]
        wanted = labels[:, 1:] != IGNORED_LABEL
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[wanted]), labels[:, 1:][wanted])
        model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in rates:
            optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            log.info("step %d/%d  loss %.4f", step + 1, steps, sum(losses[-50:]) / 50)
    model.eval()
    return sum(losses[-50:]) / len(losses[-50:])


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate: linear warm-up, then half a cosine down to a fiftieth."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return max(0.02, 0.5 * (1 + math.cos(math.pi * done)))


def collate(tokenizer: Any, batch: list[Lesson]) -> tuple[Any, Any]:
    """Token ids and labels, both int64 `[batch, longest]`; labels cover the completions only."""
    import torch

    prompts = tokenizer([lesson.prompt for lesson in batch], add_special_tokens=False)["input_ids"]
    completions = tokenizer([lesson.completion + END_OF_TURN for lesson in batch], add_special_tokens=False)[
        "input_ids"
    ]
    longest = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True))
    tokens = torch.full((len(batch), longest), tokenizer.pad_token_id)
    labels = torch.full((len(batch), longest), IGNORED_LABEL)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        end = len(prompt) + len(completion)
        tokens[row, :end] = torch.tensor(prompt + completion)
        labels[row, len(prompt) : end] = torch.tensor(completion)
    return tokens, labels


def accuracy(
    model: Any, tokenizer: Any, tested: list[Problem], *, enable_thinking: bool, batch_size: int = 50
) -> float:
    """Share of greedy answers whose first `#### N` is right, asked in the chat form of gsm8k."""
    import torch

    render = renderer(tokenizer)
    right = 0
    for start in range(0, len(tested), batch_size):
        batch = tested[start : start + batch_size]
        asked = [[{"role": "user", "content": f"Question: {problem.question}\nAnswer:"}] for problem in batch]
        inputs = tokenizer(
            [render(messages, enable_thinking) for messages in asked],
            add_special_tokens=False,
            padding=True,
            return_tensors="pt",
        )
        with torch.no_grad():
            output = model.generate(**inputs, max_new_tokens=96, do_sample=False)
        texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        for problem, text in zip(batch, texts, strict=True):
            found = GOLD.search(text)
            right += found is not None and found[1] == str(problem.steps[-1].result)
    return right / len(tested)


def _tokenizer_texts(rng: random.Random) -> Iterator[str]:
    """Texts for the tokenizer: turns of chats, with the words of the chat template."""

    def contents(messages: Messages, enable_thinking: bool) -> str:
        return "\n\n".join(f"{message['role']}\n{message['content']}" for message in messages) + "assistant\n"

    for batch in islice(batches(rng, contents), 100):
        for lesson in batch:
            yield lesson.prompt
            yield lesson.completion


if __name__ == "__main__":
    main()
