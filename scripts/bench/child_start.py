"""How long a new probing process takes until its workload's module is imported: forked by the nursery, or fresh.

The workload is a small model of transformers. A first process opens it, and the nursery gets time to import the
libraries that this process ended with. Then processes start in turn as a fresh interpreter and by the nursery. The time
counts from the request until the user's module is imported, and with it torch and transformers, and has made the model.
Required: a median of at most 1 s for forked processes.
"""

import os
import time
from statistics import median
from typing import Any

import autofit
from autofit.core.briefing import Options
from autofit.probing.remote.child import Child, Deadlines, OutputLog
from autofit.probing.remote.nursery import ForkedProcess, Nursery
from autofit.probing.remote.target import Target
from scripts.bench import report

LIMIT_S = 1.0
STARTS = 5
IMPORTS_S = 120.0
"""Maximum time for the nursery to import what the first process ended with."""
FIRST, FRESH, FORKED = "first", "fresh", "forked"


def make_decoder() -> "autofit.Workload":
    """A decoder with two layers."""
    import torch  # noqa: PLC0415  # the process that measures needs none of these
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=128
    )
    texts = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(64)]
    return autofit.Workload(
        LlamaForCausalLM(config),
        torch.utils.data.DataLoader(texts, batch_size=4),  # type: ignore[arg-type]  # any sequence is a data set
        optimizer=torch.optim.AdamW,
    )


def start(target: Target, log: OutputLog, nursery: Nursery | None, how: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Starts a process that opens the target. Returns the seconds of its phases, and its reply."""
    seen_s, began_s = dict[str, float](), time.monotonic()

    def beat(phase: str) -> None:
        seen_s.setdefault(phase, time.monotonic() - began_s)

    child = Child(Deadlines(), {}, log, nursery)
    try:
        request = target.request(enforce=False) | {"claims": False, "libraries": True}
        reply = child.ask(request, beat)
    finally:
        child.kill()
    if reply["kind"] != "briefing":
        raise SystemExit(f"the workload was not opened: {reply.get('message')}")
    found = {
        "how": how,
        "forked": isinstance(child.process, ForkedProcess),
        "started_s": round(seen_s["import"], 3),
        "imported_s": round(seen_s["open"], 3),
    }
    return found, reply


def wait_for_imports(nursery: Nursery) -> None:
    """Waits until the nursery has imported its list of modules: until its second thread has ended."""
    time.sleep(0.5)
    until = time.monotonic() + IMPORTS_S
    while time.monotonic() < until and len(os.listdir(f"/proc/{nursery.pid}/task")) > 1:
        time.sleep(0.1)


def measure(target: Target, starts: int) -> list[dict[str, Any]]:
    """Returns a record of each start: the first, which the nursery forks too, then fresh and forked ones in turn."""
    log, nursery, found = OutputLog(), Nursery({}), list[dict[str, Any]]()
    try:
        first, reply = start(target, log, nursery, FIRST)
        found.append(first)
        nursery.learn(reply["libraries"], reply["gpus"])
        wait_for_imports(nursery)
        for _ in range(starts):
            found.append(start(target, log, None, FRESH)[0])
            found.append(start(target, log, nursery, FORKED)[0])
            found[-1]["refused"] = nursery.reason
    finally:
        nursery.close()
        log.close()
    return found


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--starts", type=int, default=STARTS, help="number of processes of each kind")
    parser.add_argument("--device", help="device of the workload; the best one if none is given")
    given = parser.parse_args()
    options = Options(memory_budget="1GiB", strategies=("batching",))
    target = Target("scripts.bench.child_start:make_decoder", device=given.device, options=options)
    found = measure(target, given.starts)
    times_s = {
        how: median(each["imported_s"] for each in found if each["how"] == how) for how in (FIRST, FRESH, FORKED)
    }
    refused = [each["refused"] for each in found if each["how"] == FORKED and not each["forked"]]
    passed = times_s[FORKED] <= LIMIT_S and not refused
    shown = ", ".join(f"{how} {seconds:.2f} s" for how, seconds in times_s.items())
    why = f"; not forked: {refused[0]}" if refused else ""
    summary = f"import of a new process: {shown} (at most {LIMIT_S} s forked){why}: {'ok' if passed else 'MISSED'}"
    report.finish(
        summary, {"starts": found, "median_s": times_s, "where": report.where(given.device)}, given.json, passed
    )


if __name__ == "__main__":
    main()
