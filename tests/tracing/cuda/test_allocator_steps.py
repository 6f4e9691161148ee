"""Workspaces of a chip follow its capability and the environment."""

import pytest
import torch

from autofit.tracing.cuda.allocator_steps import KIB, MIB, Chip


def test_the_default_workspace_is_larger_from_hopper_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert Chip(capability=(8, 0)).workspaces[0] == 8320 * KIB
    assert Chip(capability=(9, 0)).workspaces[0] == 32 * MIB


def test_the_environment_decides_where_it_says_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    assert Chip().workspaces[0] == (4096 * 2 + 16 * 8) * KIB
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096")
    assert Chip().workspaces[0] == 8320 * KIB


@pytest.mark.parametrize(("version", "size"), [("2.11.0+cu130", 1024 * KIB), ("2.13.0", 0), ("2.14.1", 0)])
def test_cublaslt_shares_the_workspace_from_2_13_on(monkeypatch: pytest.MonkeyPatch, version: str, size: int) -> None:
    monkeypatch.delenv("CUBLASLT_WORKSPACE_SIZE", raising=False)
    monkeypatch.setattr(torch, "__version__", version)
    assert Chip().workspaces[1] == size
