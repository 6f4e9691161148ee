"""Runs exported loops as users' scripts would: python run_export.py FOLDER [NAME ...]. Loads no autofit.

FOLDER holds the loop of each of the kinds, as NAME.py; what comes out is written to NAME.pt, or to NAME.txt where a
loop fails.
"""

import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

SEED = 7
EPOCHS = 2


def run(loop: dict[str, Any], kind: Any) -> Any:
    """Returns the parameters after training with the loop, or what it predicts."""
    model, loader = kind.fresh(), kind.loader(loop["MICRO_BATCH_SIZE"])
    if "predict" in loop:
        torch.manual_seed(SEED)
        return list(loop["predict"](model, loader, kind.loss))
    more = {} if kind.blocks is None else {"blocks": kind.blocks(model)}
    optimizer = kind.optimizer(model.parameters())
    torch.manual_seed(SEED)
    loop["train"](model, loader, optimizer, kind.loss, epochs=EPOCHS, **more)
    return [parameter.detach() for parameter in model.parameters()]


def run_all(folder: Path, kinds: dict[str, Any]) -> None:
    """Runs the loop of each kind."""
    torch.set_num_threads(1)
    for name, kind in kinds.items():
        try:
            torch.save(run(runpy.run_path(str(folder / f"{name}.py")), kind), folder / f"{name}.pt")
        except Exception:
            (folder / f"{name}.txt").write_text(traceback.format_exc())


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), runpy.run_path(str(Path(__file__).with_name("kinds.py")))["KINDS"])
    assert not [loaded for loaded in sys.modules if loaded.split(".")[0] == "autofit"]
