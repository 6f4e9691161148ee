"""What several exporters ask of a plan."""

import pytest

from autofit.core.loading import Loading, LoadingTrial
from autofit.core.plan import KnobValue
from autofit.exporters.base import Settings, max_grad_norm
from autofit.exporters.plan_facts import (
    blocks_in_words,
    checkpointing_fields,
    checkpoints_every_block,
    chosen_loading,
    clipping_caveat,
    dataloader_fields,
    label_count_caveat,
    weighing_caveat,
)
from tests.conformance.test_exporters import OWN, answer, of_blocks


@pytest.mark.parametrize(
    ("blocks", "order", "every"),
    [(4, "0-3", True), (3, "0-3", False), (3, "2,0-1", True), (0, "", False), (4, None, False), (True, "0", False)],
)
def test_without_a_number_of_blocks_the_order_says_it(blocks: int, order: str | None, every: bool) -> None:
    plan = OWN.replace(checkpointed_blocks=blocks, **({} if order is None else {"checkpoint_order": order}))
    assert checkpoints_every_block(answer(plan)) is every


@pytest.mark.parametrize(("blocks", "every"), [(4, True), (3, False), (0, False), ("default", False), (True, False)])
def test_the_record_of_the_strategy_says_how_many_blocks_there_are(blocks: KnobValue, every: bool) -> None:
    found = of_blocks(4, checkpointed_blocks=blocks, checkpoint_order="0-2")
    assert checkpoints_every_block(found) is every


def test_a_loader_that_is_kept_or_has_no_workers_is_not_a_choice() -> None:
    found = answer(OWN)
    assert chosen_loading(found) is None
    chosen = Loading(
        needed_per_s=10.0,
        trials=(LoadingTrial(workers=2),),
        kept="",
        workers=2,
        prefetch_factor=2,
        persistent_workers=True,
    )
    kept, none = (chosen.model_copy(update=fields) for fields in ({"kept": "it keeps up"}, {"workers": 0}))
    for loading, expected in ((chosen, chosen), (kept, None), (none, None)):
        proof = found.proof.model_copy(update={"loading": loading})
        assert chosen_loading(found.model_copy(update={"proof": proof})) == expected


@pytest.mark.parametrize(
    ("text", "norm"),
    [("0.5", 0.5), ("", None), ("none", None), ("0", None), ("-1", None), ("inf", None), ("nan", None)],
)
def test_the_norm_of_clipping_is_a_positive_number(text: str, norm: float | None) -> None:
    assert max_grad_norm(answer(OWN, settings={"max_grad_norm": text})) == norm
    assert max_grad_norm(answer(OWN)) is None
    assert max_grad_norm(answer(OWN, settings={"max_grad_norm": text, "mode": "inference"})) is None


def test_clipping_without_a_field_is_a_line() -> None:
    clipped, none = answer(OWN, settings={"max_grad_norm": "5"}), answer(OWN)
    assert clipping_caveat(clipped, "It", "clip({norm})") == (
        "the plan clips gradients to the L2 norm 5.0, which It does only in your code. Write clip(5.0)",
    )
    assert clipping_caveat(none, "It", "clip({norm})") == ()


def test_the_settings_of_checkpointing_are_those_of_no_block_or_of_every_block() -> None:
    def fields(**values: KnobValue) -> dict[str, Settings]:
        return checkpointing_fields(answer(OWN.replace(**values)), {"on": False}, {"on": True})

    assert fields(checkpointed_blocks=0) == {"checkpointed_blocks": {"on": False}, "checkpoint_order": {}}
    assert fields(checkpointed_blocks=3, checkpoint_order="0-2")["checkpointed_blocks"] == {"on": True}
    assert fields(checkpointed_blocks="default")["checkpointed_blocks"] == {}
    assert fields(checkpointed_blocks=2, checkpoint_order="0-2") == {}


def test_blocks_are_named_by_their_order_or_their_number() -> None:
    assert blocks_in_words((2, 0, 1), 2) == "blocks 2,0"
    assert blocks_in_words((), 2) == "the first 2 blocks"


def test_the_fields_of_the_loader_are_those_that_were_chosen() -> None:
    found = answer(OWN)
    assert dataloader_fields(found) == {}
    trials = (LoadingTrial(workers=2),)
    chosen = Loading(needed_per_s=10.0, trials=trials, workers=2, prefetch_factor=4, pin_memory=True)
    proof = found.proof.model_copy(update={"loading": chosen})
    assert dataloader_fields(found.model_copy(update={"proof": proof})) == {
        "dataloader_num_workers": 2,
        "dataloader_prefetch_factor": 4,
        "dataloader_pin_memory": True,
    }


@pytest.mark.parametrize(
    ("weighing", "words"),
    [
        ("batch['labels'] != -100", ""),
        ("batch['labels'][..., 1:] != -100", ""),
        ("batch['labels'] != 0", "weights those of a step by their labels that are not -100."),
        ("batch['mask']", "weights those of a step by their labels that are not -100."),
        ("1", "a mean over the labels that are not -100:"),
    ],
)
def test_a_trainer_that_counts_labels_differs_where_the_plan_counts_something_else(weighing: str, words: str) -> None:
    several, one = (answer(OWN.replace(accumulation_steps=steps), settings={"weighing": weighing}) for steps in (2, 1))
    assert [words in text for text in label_count_caveat(several, "It")] == [True] * bool(words)
    assert label_count_caveat(one, "It") == ()


def test_without_a_weighing_nothing_is_said_of_it() -> None:
    plan = answer(OWN.replace(accumulation_steps=2))
    assert weighing_caveat(plan, "It") == label_count_caveat(plan, "It") == ()
