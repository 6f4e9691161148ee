"""The examples at the end of each `--help`."""

from collections.abc import Sequence

EXAMPLES: dict[str, Sequence[tuple[str, str]]] = {
    "tune": (
        ("Search for 5 minutes, for a plan that needs at most 20 GiB:",
         "autofit tune train.py:make_workload --memory 20GiB --time 5min"),
        ("Keep 64 samples per optimizer step, and keep the arithmetic:",
         "autofit tune train.py:make_workload --global-batch 64 --numerics exact"),
        ("Pass keyword arguments to the function:",
         "autofit tune train.py:make_workload --arg depth=12 --arg size=large"),
        ("Search two techniques only:",
         "autofit tune train.py:make_workload --only batching,precision"),
        ("Search in bf16 alone; the baseline is measured as it is, for comparison:",
         "autofit tune train.py:make_workload --set precision=bf16"),
        ("Leave a technique out:",
         "autofit tune train.py:make_workload --without checkpointing"),
        ("Find the shortest training of 20,000 steps, warm-up included:",
         "autofit tune train.py:make_workload --planned-steps 20000"),
        ("Keep the trials in another study. The same command resumes it:",
         "autofit tune train.py:make_workload --study bert.journal -o bert.yaml"),
        ("Log the search to TensorBoard and to MLflow:",
         "autofit tune train.py:make_workload --track tensorboard --track mlflow"),
    ),
    "run": (
        ("Tune what a script trains, where its training starts:", "autofit run train.py"),
        ("Search for 2 minutes, and pass arguments to the script:",
         "autofit run train.py --time 2min -o gpt.yaml -- --epochs 3"),
    ),
    "estimate": (
        ("Estimate for a device that is not in this machine:",
         "autofit estimate train.py:make_workload --device H200"),
        ("Estimate for a memory size alone, in the precision you train in:",
         "autofit estimate train.py:make_workload --memory 24GiB --numerics exact"),
        ("See on a page what fits with other micro batches, precisions and devices:",
         "autofit estimate train.py:make_workload --device H200 --html estimate.html"),
    ),
    "show": (
        ("Explain autofit.yaml:", "autofit show"),
        ("Print another plan as JSON:", "autofit show bert.yaml --json"),
    ),
    "diff": (
        ("Say what differs between two plan files:", "autofit diff autofit.previous.yaml autofit.yaml"),
        ("Write it as a page:", "autofit diff a.yaml b.yaml -o diff.html"),
    ),
    "report": (
        ("Write autofit.html from autofit.yaml and its study:", "autofit report"),
        ("Print it as Markdown, for a pull request or a job summary:", "autofit report bert.yaml -o -"),
        ("Show a search that found no plan:", "autofit report .autofit/study.journal -o search.html"),
    ),
    "export": (
        ("Print the training loop in plain PyTorch:", "autofit export"),
        ("Write it to a file:", "autofit export bert.yaml --to python -o loop.py"),
    ),
    "nightly": (
        ("Check all jobs of jobs.yaml in at most 4 hours, for cron or a CI job:",
         "autofit nightly jobs.yaml --time 4h --html nightly.html"),
        ("See what a night would do, and what the last one found:", "autofit nightly jobs.yaml --dry-run"),
        ("Check one job, as each task of a Slurm array does:", "autofit nightly jobs.yaml --job gpt"),
        ("Check each job as a task of a Ray cluster:", "autofit nightly jobs.yaml --on ray"),
        ("Write a first jobs file:", "autofit nightly init train.py:make_workload"),
        ("Use the better plan that a night found:", "autofit nightly accept gpt"),
    ),
    "nightly init": (
        ("Write jobs.yaml with one job:",
         "autofit nightly init train.py:make_workload --device cuda --time 10min"),
        ("Print it instead:", "autofit nightly init train.py:make_workload -o -"),
    ),
    "nightly accept": (
        ("Make plan.new.yaml the plan of a job; plan.previous.yaml keeps the old one:", "autofit nightly accept gpt"),
        ("Of another jobs file:", "autofit nightly accept gpt --jobs team/jobs.yaml"),
        ("Live with a regression whose cause is known:", "autofit nightly accept gpt --level"),
    ),
    "completion": (
        ("Complete commands in this bash session:", 'eval "$(autofit completion bash)"'),
        ("For every zsh session; add the line to ~/.zshrc:", 'eval "$(autofit completion zsh)"'),
        ("For every fish session:",
         "autofit completion fish > ~/.config/fish/completions/autofit.fish"),
    ),
}  # fmt: skip
"""For each command: what an example does, and its command line."""

TOUR = (
    ("Tune, explain the plan, and write it as plain PyTorch:", "autofit tune train.py:make_workload --memory 20GiB"),
    ("", "autofit show autofit.yaml"),
    ("", "autofit export autofit.yaml --to python"),
    ("See what training needs on another device:", "autofit estimate train.py:make_workload --device H200"),
)
"""The examples of `autofit --help`."""


def shown(examples: Sequence[tuple[str, str]]) -> str:
    """Returns the examples as the end of a help text."""
    lines = ["examples:"]
    for about, line in examples:
        lines += [f"  {about}"] if about else []
        lines.append(f"    {line}")
    return "\n".join(lines)
