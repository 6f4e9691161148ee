"""Host time of a watched training step, as a multiple of that of the same step without the watch.

The model is a GPT-2 with 4 layers of width 64, with dropout and AdamW. Watched and unwatched steps run in turn, in
blocks, on copies of one model. Required: a median of the ratios of at most 5.
"""

from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from time import perf_counter

import torch
import transformers

from autofit.doctor.session import collection_off
from autofit.doctor.watch import Watch
from scripts.bench import report

LIMIT_RATIO = 5.0
BLOCKS, STEPS, DROPPED = 7, 12, 2
WORDS, LENGTH, BATCH = 2000, 64, 4


def training() -> tuple[torch.nn.Module, Callable[[], None]]:
    """Returns a model, and a function that does one step of its training."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=4, n_embd=64, n_head=2, vocab_size=WORDS, n_positions=LENGTH, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config).train()
    ids, optimizer = torch.randint(WORDS, (BATCH, LENGTH)), torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def block(watches: bool) -> tuple[float, float]:
    """Returns the median duration of a step, and that of a boundary between steps, in seconds."""
    model, step = training()
    watch = Watch(torch.device("cpu"), [model]) if watches else None
    steps_s, boundaries_s = list[float](), list[float]()
    with collection_off(), nullcontext() if watch is None else watch.watching():
        for _ in range(DROPPED + STEPS):
            began_s = perf_counter()
            step()
            ended_s = perf_counter()
            if watch is not None:
                watch.boundary()
            steps_s.append(ended_s - began_s)
            boundaries_s.append(perf_counter() - ended_s)
    return median(steps_s[DROPPED:]), median(boundaries_s[DROPPED:])


def main() -> None:
    given = report.parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    blocks = [(block(False)[0], *block(True)) for _ in range(BLOCKS)]
    ratio = median(watched_s / plain_s for plain_s, watched_s, _ in blocks)
    plain_s, watched_s, boundary_s = (median(each[column] for each in blocks) for column in range(3))
    passed = ratio <= LIMIT_RATIO
    summary = (
        f"a watched step takes {ratio:.2f} times as long as one that is not (at most {LIMIT_RATIO:g}): {plain_s:.4f} s "
        f"and {watched_s:.4f} s, and {boundary_s:.4f} s between steps: {'ok' if passed else 'MISSED'}"
    )
    report.finish(summary, {"blocks": blocks, "median_ratio": ratio}, given.json, passed, device="cpu")


if __name__ == "__main__":
    main()
