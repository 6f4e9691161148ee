"""scripts/mutate-cuda: every mutation still applies to the source, and names tests that exist."""

import pytest

from scripts.mutate_cuda.__main__ import MUTATIONS, ROOT, path
from scripts.mutate_cuda.mutation import Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_replaces_a_text_that_occurs_once(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1
    assert mutation.new != mutation.old


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_tests_that_are_likely_to_notice_it_exist(mutation: Mutation) -> None:
    assert mutation.likely
    paths = [path(name) for name in mutation.likely]
    assert [each for each in paths if not (ROOT / each).is_file()] == []
