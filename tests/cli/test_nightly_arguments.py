"""The words of `autofit nightly`: a jobs file and an action differ by the first word."""

from autofit.cli import _EXIT_CODES, parser


def test_an_action_is_a_command_of_two_words_and_any_other_word_is_a_jobs_file() -> None:
    read = parser().parse_args
    assert read(["nightly"]).command == "nightly"
    assert read(["nightly"]).jobs == "jobs.yaml"
    assert read(["nightly", "team.yaml", "--job", "a", "--job", "b"]).only == ["a", "b"]
    assert read(["nightly", "./init"]).jobs == "./init"
    assert read(["nightly", "init", "train.py"]).command == "nightly init"
    assert read(["nightly", "init", "train.py"]).target == "train.py"
    assert read(["nightly", "accept", "gpt"]).job == "gpt"
    assert read(["nightly", "accept", "gpt", "--jobs", "team.yaml"]).jobs == "team.yaml"


def test_every_command_has_the_common_flags_and_help_names_the_exit_code_of_a_regression() -> None:
    for words in (["nightly"], ["nightly", "init", "t.py"], ["nightly", "accept", "gpt"]):
        given = parser().parse_args([*words, "--json", "--quiet"])
        assert (given.json, given.quiet) == (True, True)
    assert "  4    nightly: " in _EXIT_CODES
