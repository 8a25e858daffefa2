"""Examples in the help of commands. A test parses each of them."""

import typer

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": (
        "actograph up --model ./my-model",
        "actograph up --home ~/lab --model q=Qwen/Qwen3-0.6B --data-root ~/data",
        "actograph up --model ./my-model --workers 2 --device cuda:0,cuda:1",
    ),
    "demo": ("actograph demo", "actograph demo --limit 50 --keep"),
    "chat": (
        'actograph chat "What is 3 + 4?" --max-tokens 64',
        "actograph chat --system 'Answer briefly.' --capture resid_post@all",
        "echo 'What is 3 + 4?' | actograph chat -",
    ),
    "estimate": (
        "actograph estimate job.json",
        "actograph estimate --dataset rows.jsonl --capture resid_post@all --max-tokens 512",
    ),
    "workers": ("actograph workers", "actograph workers --all --format json"),
    "jobs submit": (
        "actograph jobs submit --task gsm8k --dataset test.jsonl --capture resid_post@all --watch",
        "actograph jobs submit --prompt 'Once upon a time' --max-tokens 50 --capture resid_post.1",
        "actograph jobs submit job.json --tag night --priority 8",
    ),
    "jobs ls": ("actograph jobs ls --status in_progress", "actograph jobs ls --tag night -q --no-trunc"),
    "jobs show": ("actograph jobs show job_3fa2", "actograph jobs show 3fa2 --format json"),
    "jobs samples": (
        "actograph jobs samples job_3fa2 --incorrect",
        "actograph jobs samples job_3fa2 --status failed",
        "actograph jobs samples job_3fa2 --all --format json > samples.jsonl",
    ),
    "jobs watch": ("actograph jobs watch job_3fa2 && echo done",),
    "jobs cancel": (
        "actograph jobs cancel job_3fa2",
        "actograph jobs cancel $(actograph jobs ls -q --tag night)",
    ),
    "jobs retry": ("actograph jobs retry job_3fa2 --watch",),
    "jobs rm": ("actograph jobs rm job_3fa2",),
    "jobs compare": (
        "actograph jobs compare job_3fa2",
        "actograph jobs compare job_3fa2 --activations EP02 --positions last_prompt --store-as career",
    ),
    "jobs export": ("actograph jobs export job_3fa2 --out night-run --activations sampled",),
    "eval run": (
        "actograph eval gsm8k --dataset test.jsonl --limit 100 --capture resid_post@all",
        "actograph eval gsm8k --condition plain --condition 'EP02:suffix=This matters to me.'",
        "actograph eval additions.yaml --epochs 4 --temperature 0.8",
    ),
    "eval rescore": ("actograph eval rescore job_3fa2 --scorer numeric",),
    "batches create": ("actograph batches create in.jsonl --window 12h",),
    "batches ls": ("actograph batches ls",),
    "batches show": ("actograph batches show batch_3fa2",),
    "batches cancel": ("actograph batches cancel batch_3fa2",),
    "batches results": (
        "actograph batches results batch_3fa2 -o answers.jsonl",
        "actograph batches results batch_3fa2 --errors",
    ),
    "sessions ls": (
        "actograph sessions ls --job job_3fa2 --incorrect",
        "actograph sessions ls --tag night --condition EP02 --all --format json",
    ),
    "sessions show": ("actograph sessions show ses_9c1d",),
    "sessions pull": (
        "actograph sessions pull ses_9c1d --out pulled",
        "actograph sessions pull --job job_3fa2 --incorrect --out wrong --jobs 8",
    ),
    "sessions rm": (
        "actograph sessions rm ses_9c1d",
        "actograph sessions rm --tag night --correct --dry-run",
    ),
    "sessions update": (
        "actograph sessions update ses_9c1d --pin",
        "actograph sessions update --job job_3fa2 --set-tag keep --expires-in 30d --dry-run",
    ),
    "store usage": ("actograph store usage",),
    "store gc": ("actograph store gc --dry-run", "actograph store gc"),
    "store verify": ("actograph store verify", "actograph store verify --sample 0.1"),
    "models ls": ("actograph models ls",),
    "models load": ("actograph models load Qwen/Qwen3-0.6B --dtype bfloat16 --device-map cuda:0",),
    "models structure": ("actograph models structure", "actograph models structure my-model --names"),
    "queue info": ("actograph queue info",),
    "queue pause": ("actograph queue pause --reason 'new disk at noon'",),
    "queue resume": ("actograph queue resume",),
    "keys create": (
        "actograph keys create root --role admin",
        "actograph keys create dashboard --owner alice --role read --expires-in 30d",
    ),
    "keys ls": ("actograph keys ls --all",),
    "keys revoke": ("actograph keys revoke key_3fa2",),
}


def show(app: typer.Typer, path: tuple[str, ...] = ()) -> None:
    """Add the examples to the help of all commands of an application."""
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        if lines := EXAMPLES.get(" ".join((*path, name))):
            # rich joins lines unless an empty line separates them
            command.epilog = "\n\n".join(["Examples:", *(f"$ {line}" for line in lines)]).replace("[", r"\[")
    for group in app.registered_groups:
        if group.typer_instance is not None and group.name:
            show(group.typer_instance, (*path, group.name))
