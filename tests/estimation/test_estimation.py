"""An estimation as a person reads it: within the width, in ASCII where asked, without control sequences of others."""

import re

import pytest

from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.estimation.estimation import EstimatedPlan, Estimation, Need, Row, TradedKnob, draw
from autofit.memory.breakdown import BEYOND, OUTSIDE, Breakdown, Part
from autofit.reports.canvas import Canvas

GIB = 2**30
LONG = "encoder." + "very_long_name." * 6 + "dense"


def estimated(size: int, peak: int, precision: str = "fp32", blocks: int = 0) -> EstimatedPlan:
    plan = Plan(
        values={
            "micro_batch_size": size, "accumulation_steps": 1, "precision": precision, "checkpointed_blocks": blocks
        }
    )  # fmt: skip
    bounded = Estimate(value_bytes=peak, lower_bytes=peak - 1, upper_bytes=peak + GIB)
    return EstimatedPlan(plan=plan, peak=bounded, fits=peak <= 16 * GIB, surely=peak + GIB <= 16 * GIB)


def estimation(own_bytes: int = 12 * GIB, **changes: object) -> Estimation:
    parts = Breakdown(
        moment="step 2 backward",
        allocated_bytes=9 * GIB,
        reserved_bytes=11 * GIB,
        kinds=(
            Part(name="activation", size_bytes=6 * GIB),
            Part(name="parameter", size_bytes=3 * GIB),
            Part(name=BEYOND, size_bytes=2 * GIB),
            Part(name=OUTSIDE, size_bytes=GIB),
        ),
        modules=(Part(name="blocks.*.mlp", size_bytes=5 * GIB, count=12), Part(name=LONG, size_bytes=GIB)),
        standing=(Part(name="parameter", size_bytes=3 * GIB), Part(name="gradient", size_bytes=3 * GIB)),
    )
    largest = estimated(40, 15 * GIB)
    all_blocks = estimated(16, 17 * GIB, blocks=12)
    rows = (
        Row(
            knob="precision",
            value="fp32",
            largest=largest,
            surely=36,
            needs=(
                Need(micro_batch_size=8, blocks=0, estimated=estimated(8, GIB)),
                Need(micro_batch_size=16, blocks=5, estimated=estimated(16, GIB, blocks=5)),
            ),
        ),
        Row(knob="precision", value="tf32", same_as="fp32", largest=largest, surely=36),
        Row(
            knob="precision",
            value="bf16",
            largest=estimated(64, 15 * GIB, "bf16"),
            capped="the whole global batch",
            needs=(
                Need(micro_batch_size=8, blocks=0),
                Need(micro_batch_size=16, blocks=None, estimated=all_blocks),
            ),
        ),
        Row(knob="precision", value="fp16", reason="the operator is odd (train.py:7)"),
    )
    fields: dict[str, object] = {
        "target": "train.py:make",
        "environment": Environment(
            workload="a-b", device_type="cuda", device_name="Test Card", capacity_bytes=24 * GIB
        ),
        "budget": Budget(memory_bytes=16 * GIB, memory_note="16 GiB as asked"),
        "account": Account(allocator="caching", outside_bytes=GIB, settings="expandable_segments:True"),
        "own": estimated(8, own_bytes),
        "breakdown": parts,
        "traded": TradedKnob(knob="checkpointed_blocks", technique="checkpointing", counted="blocks to checkpoint"),
        "rows": rows,
        "caveats": ("a thing to know",),
        "refused": (Refusal(name="precision=fp8", reason="not here"),),
    }
    return Estimation.model_validate(fields | changes)


def line_of(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if word in line)


def test_it_says_what_was_asked() -> None:
    text = draw(estimation())
    flat = " ".join(text.split())
    assert "train.py:make on Test Card" in flat
    assert "16 GiB as asked, less 1 GiB for context and libraries leaves 15 GiB to the allocator" in flat
    assert "expandable_segments:True" in flat
    assert "micro batch 8, fp32, peaks at 12 GiB (at most 13 GiB): fits." in flat
    assert "Live tensors peak at 9 GiB, in step 2 backward; the allocator's segments at 11 GiB" in flat
    assert "At any batch size: parameters 3 GiB + gradients 3 GiB = 6 GiB" in flat
    assert "a thing to know" in flat
    assert "fewest blocks to checkpoint for micro batches of 8 and 16" in flat
    assert "precision=fp8 is left out: not here" in flat


def test_it_says_that_it_is_of_one_rank_of_several() -> None:
    text = " ".join(draw(estimation(ranks=8)).split())
    assert "train.py:make on 8 x Test Card, per rank: estimated, nothing was run" in text
    assert "micro batch 8 on each of 8 ranks (global batch 64)" in text
    assert "The largest micro batch that fits on each rank" in text
    alone = " ".join(draw(estimation()).split())
    assert "train.py:make on Test Card: estimated, nothing was run" in alone
    assert "rank" not in alone


def test_rates_are_in_common_notation() -> None:
    largest = estimated(40, 15 * GIB).model_copy(update={"samples_per_s": 10812.3})
    text = draw(estimation(rows=(Row(knob="precision", value="fp32", largest=largest, surely=36),)))
    assert "10,800/s" in line_of(text, "fp32 (baseline)")


def test_many_refusals_are_one_note_that_names_them() -> None:
    refused = tuple(Refusal(name=f"knob{number}", reason=f"reason {number}") for number in range(5))
    few, many = draw(estimation(refused=refused[:3])), " ".join(draw(estimation(refused=refused)).split())
    assert [f"knob{number} is left out: reason {number}" in few for number in range(3)] == [True] * 3
    assert many.count("note ") == 2
    assert "left out: knob0, knob1, knob2, knob3, knob4. `refused` has the reasons" in many
    assert "reason 4" not in many


def test_the_table_has_a_line_for_each_precision() -> None:
    text = draw(estimation())
    assert line_of(text, "fp32 (baseline)").split() == ["fp32", "(baseline)", "40", "36", "15", "GiB", "0", "5"]
    assert line_of(text, "tf32").split() == ["tf32", "as", "fp32"]
    assert line_of(text, "  bf16").split()[:5] == ["bf16", "64*", "none", "15", "GiB"]
    assert "not even 12" in line_of(text, "  bf16")
    assert line_of(text, "* the whole") == "  * the whole global batch"
    assert line_of(text, "  fp16").split() == ["fp16", "unknown"]
    assert "fp16: the operator is odd (train.py:7)" in text


def test_bars_are_in_proportion_and_largest_first() -> None:
    text = draw(estimation())
    bars = {name: line_of(text, name).count("#") for name in ("activations", "parameters  ", BEYOND)}
    assert bars["activations"] > bars["parameters  "] > bars[BEYOND] > 0
    assert bars["parameters  "] == pytest.approx(bars["activations"] / 2, abs=1)
    assert line_of(text, "activations").endswith("6 GiB  50%")
    assert line_of(text, "blocks.*.mlp x12").endswith("83%")


@pytest.mark.parametrize("width", [72, 80, 120])
@pytest.mark.parametrize("blocks", [True, False])
def test_no_line_is_wider_than_the_terminal(width: int, blocks: bool) -> None:
    lines = draw(estimation(), Canvas(width=width, blocks=blocks)).splitlines()
    assert max(map(len, lines)) <= width
    assert any(".." in line and "dense" in line for line in lines), "a long name keeps its end"


def test_plain_text_is_ascii_and_colours_only_colour() -> None:
    plain, coloured = draw(estimation()), draw(estimation(), Canvas(colour=True))
    assert plain.isascii()
    assert "\x1b[32mfits\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain


def test_what_does_not_fit_says_by_how_much() -> None:
    text = draw(estimation(18 * GIB, shortfall="too large by far"), Canvas(colour=True))
    assert "\x1b[31mdoes not fit, by 2 GiB\x1b[0m" in text
    assert "Nothing fits: too large by far" in text


def test_names_cannot_take_the_terminal_over() -> None:
    text = draw(estimation(target="\x1b[31mtrain.py\x07", caveats=("\x1b]0;title\x07a note",)))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_it_prints_itself_and_survives_json() -> None:
    found = estimation()
    assert str(found) == draw(found)
    assert Estimation.model_validate_json(found.model_dump_json(by_alias=True)) == found
    assert '"schema":"autofit.estimate/1"' in found.model_dump_json(by_alias=True)
