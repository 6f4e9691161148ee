"""What every exporter keeps."""

import pytest

from autofit import exporters
from autofit.core.answer import Answer, Candidate, Ratio
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.errors import UsageError
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import KnobValue, Plan
from autofit.core.space import Refusal, StrategyRecord
from autofit.exporters.base import Exporter, TargetVersion

NEWEST = TargetVersion("999.0")
OWN = Plan(
    values={
        "micro_batch_size": 8,
        "accumulation_steps": 1,
        "precision": "fp32",
        "checkpointed_blocks": 0,
        "memory_format": "default",
        "optimizer_implementation": "default",
    }
)
VALUES: list[tuple[str, KnobValue]] = [
    ("micro_batch_size", 4),
    ("accumulation_steps", 3),
    ("precision", "tf32"),
    ("precision", "bf16"),
    ("precision", "fp16"),
    ("checkpointed_blocks", 2),
    ("memory_format", "channels_last"),
    ("cudnn_benchmark", True),
    ("optimizer_implementation", "for-loop"),
    ("optimizer_implementation", "foreach"),
    ("optimizer_implementation", "fused"),
    ("layout", "replicated"),
    ("layout", "optimizer"),
    ("layout", "full"),
    ("layout", "hybrid"),
    ("gradient_as_bucket_view", True),
    ("reshard_after_forward", False),
    ("gather_precision", "bf16"),
    ("sync_each_batch", False),
    ("find_unused_parameters", True),
]
WEIGHTS_ALIKE = {"huggingface", "accelerate", "lightning", "deepspeed", "axolotl"}
"""Trainers that divide the loss of each micro batch by the accumulation steps, the first only for some models."""
COUNTS_LABELS = {"torchtitan"}
"""Trainers that weight micro batches by their labels, in the newest known version."""
EVIL = 'x"; import os\nimport os\r\x0bimport os\x85import os\u2028"""\n'


def answer(plan: Plan, own: Plan = OWN, settings: dict[str, str] | None = None) -> Answer:
    memory = Memory(allocated_bytes=2**20, judged_bytes=2**20, judged_by="footprint")
    proof = Measurement(step_times_s=(0.1,), samples_per_step=8, memory=memory)
    return Answer(
        plan=plan,
        proof=proof,
        baseline=Candidate(plan=own, outcome=Outcome(status=Status.MEASURED, measurement=proof)),
        gain=Ratio(value=1.25, low=1.2, high=1.3, pairs=4),
        budget=Budget(memory_bytes=2**30),
        objective=Objective(),
        environment=Environment(
            workload="w",
            device_type="cpu",
            device_name="chip",
            capacity_bytes=2**34,
            versions={"torch": "2.13.0"},
            settings=settings or {},
        ),
    )


def of_blocks(count: int, **values: KnobValue) -> Answer:
    """Returns a plan for a model with this number of blocks."""
    return with_blocks(answer(OWN.replace(**values)), count)


def on_cuda(found: Answer) -> Answer:
    """Returns the same answer for a GPU."""
    environment = found.environment.model_copy(update={"device_type": "cuda"})
    return found.model_copy(update={"environment": environment})


def with_blocks(found: Answer, count: int = 4) -> Answer:
    """Returns an answer whose record says how many blocks the model has."""
    record = StrategyRecord(
        name="checkpointing", knobs=("checkpointed_blocks",), about="", cost="", effect="exact",
        parts={"checkpointed_blocks": count},
    )  # fmt: skip
    return found.model_copy(update={"strategies": (record,)})


@pytest.fixture(params=exporters.members(), ids=lambda member: member.name)
def exporter(request: pytest.FixtureRequest) -> Exporter:
    member: Exporter = request.param
    return member


def test_names_are_unique_and_lead_to_their_exporter() -> None:
    assert len({member.name for member in exporters.members()}) == len(exporters.members())
    for member in exporters.members():
        assert exporters.by_name(member.name) is member


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"found .*'nowhere'; expected one of .*python"):
        exporters.by_name("nowhere")


def test_the_export_is_a_text_file(exporter: Exporter) -> None:
    export = exporter.export(answer(OWN))
    assert export.text.endswith("\n")
    assert not export.text.endswith("\n\n")
    assert export.filename
    assert "/" not in export.filename
    assert exporter.export(answer(OWN)) == export


def test_what_the_user_has_already_needs_no_words(exporter: Exporter) -> None:
    own = OWN.replace(precision="fp8", unheard_of="mine")
    assert exporter.export(answer(own, own)).unmapped == ()


def test_a_knob_without_words_is_listed_in_the_file_too(exporter: Exporter) -> None:
    export = exporter.export(answer(OWN.replace(unheard_of="on")))
    assert export.unmapped == ("unheard_of",)
    if exporter.comment:
        assert f"{exporter.comment}  unheard_of=on\n" in export.text
        assert "NOT in this file" in export.text


@pytest.mark.parametrize("value", [True, 1])
def test_true_and_one_are_different_values(exporter: Exporter, value: KnobValue) -> None:
    other = 1 if value is True else True
    own = OWN.replace(unheard_of=other)
    assert exporter.export(answer(OWN.replace(unheard_of=value), own)).unmapped == ("unheard_of",)


@pytest.mark.parametrize(("knob", "value"), VALUES)
def test_each_changed_knob_changes_the_text_or_is_listed(exporter: Exporter, knob: str, value: KnobValue) -> None:
    plain, changed = (exporter.export(answer(plan)) for plan in (OWN, OWN.replace(**{knob: value})))
    if knob in changed.unmapped:
        assert changed.unmapped == (knob,)
    elif knob in changed.by_hand:
        assert changed.by_hand[knob] in changed.text or not exporter.comment
    else:
        assert changed.unmapped == ()
        assert _body(changed.text, exporter) != _body(plain.text, exporter)


def test_only_knobs_of_the_plan_are_said(exporter: Exporter) -> None:
    plan = Plan(values={"micro_batch_size": 2})
    assert exporter.fields(answer(plan), NEWEST).keys() <= plan.values.keys()


def test_a_file_never_trains_with_another_global_batch(exporter: Exporter) -> None:
    plan = OWN.replace(micro_batch_size=EVIL, accumulation_steps=EVIL)
    with pytest.raises(UsageError, match="another global batch"):
        exporter.export(answer(plan))


@pytest.mark.parametrize("layout", ["replicated", "optimizer", "full"])
def test_a_layout_is_never_the_user_s_own(exporter: Exporter, layout: str) -> None:
    plan = OWN.replace(layout=layout)
    export = exporter.export(on_cuda(answer(plan, plan)))
    said = "layout" in (*export.unmapped, *export.by_hand)
    assert said or export.settings != exporter.export(on_cuda(answer(OWN))).settings
    assert not any(key.endswith("train_batch_size") for key in export.settings if "per_device" not in key)


def test_a_plan_for_inference_is_refused_by_what_only_trains(exporter: Exporter) -> None:
    found = answer(OWN, settings={"mode": "inference"})
    if exporter.infers:
        assert exporter.export(found).text
        return
    with pytest.raises(UsageError, match="found a plan for inference"):
        exporter.export(found)


def test_a_version_that_is_not_known_is_said_in_the_file(exporter: Exporter) -> None:
    if not exporter.package:
        with pytest.raises(UsageError, match="depends on no version"):
            exporter.export(answer(OWN), "1.0")
        return
    export = exporter.export(answer(OWN), "999.0")
    assert export.target_version == exporter.newest
    assert "999.0 is not known" in export.warnings[0]
    assert not exporter.comment or export.warnings[0] in export.text
    assert exporter.export(answer(OWN), exporter.oldest).warnings == ()
    with pytest.raises(UsageError, match=r"found the version 'new'.*expected one of"):
        exporter.export(answer(OWN), "new")


def test_a_loader_whose_batches_cannot_be_made_anew_is_to_be_kept(exporter: Exporter) -> None:
    fixed = answer(OWN)
    fixed = fixed.model_copy(update={"refused": (Refusal(name="micro_batch_size", reason="its sampler decides"),)})
    export = exporter.export(fixed)
    assert [text.endswith("keep this loader, whatever batch size is set") for text in export.warnings] == [True]
    assert not exporter.comment or export.warnings[0] in export.text
    assert exporter.export(answer(OWN)).warnings == ()


@pytest.mark.parametrize(
    ("weighing", "alike", "counted"),
    [
        ("batch['labels'] != -100", "alike", ""),
        ("batch['mask']", "alike", "by their labels that are not -100"),
        ("1", "multiply the loss by 3", "smaller by their number"),
    ],
)
def test_a_trainer_that_weights_micro_batches_in_another_way_is_said(
    exporter: Exporter, weighing: str, alike: str, counted: str
) -> None:
    plan = OWN.replace(accumulation_steps=3)
    export = exporter.export(answer(plan, settings={"weighing": weighing}))
    words = alike if exporter.name in WEIGHTS_ALIKE else counted if exporter.name in COUNTS_LABELS else ""
    assert [words in text for text in export.warnings] == [True] * bool(words)
    assert not exporter.comment or all(text in export.text for text in export.warnings)
    assert exporter.export(answer(OWN, settings={"weighing": weighing})).warnings == ()
    assert exporter.export(answer(plan)).warnings == ()


def test_the_clipping_of_the_plan_is_written_or_said(exporter: Exporter) -> None:
    clipped, none = (exporter.export(answer(OWN, settings={"max_grad_norm": text})) for text in ("5.25", "None"))
    assert 5.25 in clipped.settings.values() or any("5.25" in text for text in clipped.warnings)
    assert "5.25" in clipped.text
    assert none == exporter.export(answer(OWN))
    assert none.warnings == ()
    if exporter.infers:
        given = answer(OWN, settings={"max_grad_norm": "5.25", "mode": "inference"})
        assert "5.25" not in exporter.export(given).text


def test_texts_of_a_foreign_plan_cannot_become_code(exporter: Exporter) -> None:
    plan = OWN.replace(precision=EVIL, memory_format=EVIL, optimizer_implementation=EVIL, checkpointed_blocks=EVIL)
    settings = {"optimizer": EVIL, "max_grad_norm": EVIL, "mode": EVIL}
    hostile = answer(Plan(values={**plan.values, EVIL: EVIL}), settings=settings)
    versions, device = {"torch": EVIL}, EVIL
    environment = hostile.environment.model_copy(update={"versions": versions, "device_name": device})
    export = exporter.export(hostile.model_copy(update={"environment": environment}))
    assert EVIL in export.unmapped
    assert "import os" not in _body(export.text, exporter)


def _body(text: str, exporter: Exporter) -> str:
    """Returns the text without comment lines; `splitlines` also breaks at the rarer line breaks."""
    lines = text.splitlines()
    return "\n".join(line for line in lines if not exporter.comment or not line.startswith(exporter.comment.strip()))


@pytest.mark.parametrize("exporter", exporters.members(), ids=lambda member: str(member.name))
def test_a_plan_for_a_step_of_the_user_is_refused(exporter: Exporter) -> None:
    with pytest.raises(UsageError, match="found a plan for a step that update_fn does"):
        exporter.export(answer(OWN, settings={"update": "update_fn"}))
