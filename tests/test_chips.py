"""Devices by name: forgiving in writing, strict in meaning, with figures that can be true."""

import subprocess
import sys

import pytest

from autofit.chips import cards, find
from autofit.core.errors import UsageError


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H200", "NVIDIA H200"), ("h200", "NVIDIA H200"), ("NVIDIA H200", "NVIDIA H200"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"), ("RTX-4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"), ("a100 80gb", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"), ("A10", "NVIDIA A10"), ("T4", "Tesla T4"),
        ("H100 SXM", "NVIDIA H100 80GB HBM3"), ("h100-sxm5-80gb", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 SXM5 80 GB", "NVIDIA H100 80GB HBM3"), ("H100SXM", "NVIDIA H100 80GB HBM3"),
        ("h100_pcie", "NVIDIA H100 PCIe"), ("A100-80G", "NVIDIA A100-SXM4-80GB"),
        ("A100 80GiB SXM", "NVIDIA A100-SXM4-80GB"), ("SXM4 A100 40GB", "NVIDIA A100-SXM4-40GB"),
        ("NVIDIA V100 Tensor Core GPU 32GB", "Tesla V100-SXM2-32GB"), ("RTX4090 24GB", "NVIDIA GeForce RTX 4090"),
        ("H200 141GB", "NVIDIA H200"), ("A10G 24G", "NVIDIA A10G"),
    ],
)  # fmt: skip
def test_names_are_found_however_they_are_written(written: str, name: str) -> None:
    assert find(written).name == name


def test_every_name_and_alias_finds_its_own_device() -> None:
    for card in cards():
        assert [find(name) for name in (card.name, *card.aliases)] == [card] * (1 + len(card.aliases))


@pytest.mark.parametrize("written", ["A100", "h100", "v100", "H100 80GB", "A100 SXM"])
def test_a_name_of_several_says_which(written: str) -> None:
    with pytest.raises(UsageError, match="may be any of") as caught:
        find(written)
    assert str(caught.value).partition("may be")[2].count(written.upper().split()[0]) >= 2


@pytest.mark.parametrize("written", ["B9000", "", "NVIDIA", "H20", "RTX 3080 Ti", "A100 80GB PCIe", "MI300X"])
def test_an_unknown_name_says_which_are_known_and_that_memory_suffices(written: str) -> None:
    with pytest.raises(UsageError, match="unknown device") as caught:
        find(written)
    assert "H200" in str(caught.value)
    assert "24GiB" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "closest"),
    [("H20", "H200"), ("RTX 3080 Ti", "RTX 3080"), ("A100 80GB PCIe", "A100 80GB"), ("H100 SMX5", "H100 SXM")],
)
def test_an_unknown_name_lists_the_closest_first(written: str, closest: str) -> None:
    with pytest.raises(UsageError, match=rf"expected one of {closest}, .*T4"):
        find(written)


def test_a_kind_of_device_is_no_device() -> None:
    with pytest.raises(UsageError, match="name of a card"):
        find("cuda:0")


def test_the_figures_can_be_true() -> None:
    assert len(cards()) >= 20
    for card in cards():
        assert 4 * 2**30 < card.capacity_bytes < 400 * 2**30, card.name
        assert 16 <= card.multiprocessors <= 256, card.name
        assert card.threads == {7.0: 2048, 7.5: 1024, 8.0: 2048, 9.0: 2048, 10.0: 2048}.get(
            float(f"{card.capability[0]}.{card.capability[1]}"), 1536
        ), card.name
        if card.capability < (8, 0):
            assert card.tflops["bf16"] is card.tflops["tf32"] is None, card.name
        figures = [*(figure for figure in card.tflops.values() if figure is not None), card.bandwidth_bytes_per_s]
        assert all(figure is None or figure > 0 for figure in figures)
        assert card.sources["capacity"]
        assert card.sources["chip"]
        assert bool(card.sources["ceilings"]) or not any(figures), f"{card.name} has figures without a source"


def test_the_stand_in_has_the_chip_of_its_card() -> None:
    described = find("H200").stand_in()
    assert (described.type, described.capability, described.multiprocessors) == ("cuda", (9, 0), 132)
    assert described.capacity_bytes == find("H200").capacity_bytes


def test_reading_it_does_not_load_torch() -> None:
    code = "import sys; from autofit import chips; chips.cards(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ceilings_are_those_that_are_published() -> None:
    found = find("H200").ceilings()
    assert found is not None
    assert found.flops_per_s["bf16"] == pytest.approx(989e12, rel=1e-3)
    assert found.bytes_per_s == pytest.approx(4.8e12, rel=1e-3)
    assert found.ahead
    turing = find("T4").ceilings()
    assert turing is not None
    assert turing.flops_per_s.keys() == {"fp32", "fp16"}
