"""F59: what looks like a secret is hidden, and what does not stays."""

import pytest

from autofit.core.printable import redacted


@pytest.mark.parametrize(
    "secret",
    [
        "OPENAI_API_KEY=sk-1 and", "{'AWS_SECRET_ACCESS_KEY': 'sk-1'}", "password = 'sk-1'",
        "Authorization: Bearer sk-1", "PGPASSWORD=sk-1", "clientSecret: 'sk-1'", "accessToken=sk-1",
        "dbPassword=sk-1", "db_pass=sk-1", "smtp-pass: 'sk-1'", "pwd=sk-1", '"db_pwd": "sk-1"', "dbPwd=sk-1",
        "dbPass=sk-1", "npm_sk1" + 33 * "a", "pypi-AgEIcHlwaS5vcmcsk1sk1",
        '"authToken": "sk-1"', "redis://:sk-1@host",
        "postgresql://me:sk-1@host/base", "https://host/x?token=sk-1", "hf_sk1sk1sk1sk1sk1sk1sk1sk1",
        "ghp_sk1sk1sk1sk1sk1sk1sk1", "--token sk-sk1sk1sk1sk1sk1sk1", "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0sk1.sk-1",
    ],
)  # fmt: skip
def test_defect_07_what_looks_like_a_secret_is_hidden(secret: str) -> None:
    assert "sk1" not in redacted(secret).replace("sk-1", "sk1")
    assert "***" in redacted(secret)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2 GiB. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "KeyError: 'row'", "max_token=512", "num_tokens=abc", "Missing key(s) in state_dict: x", "https://host/page",
        "expected key=3, query=4", "tokenizer=bert",
        "error in the backward pass: NaN", "backward_pass=slow",
        "forwardPass=slow", "PWD=/home/me", "OLDPWD=/", "npm_config_user_agent_of_a_long_name=x", "bypass=all",
        "CUDA_LAUNCH_BLOCKING=1",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_long_text_takes_no_time() -> None:
    for text in ("x" * 16000, "a_token_" * 2000, "://" * 5000, "KEY-" * 4000, "x://" + ":" * 20000, "aToken" * 3000):
        assert len(redacted(text)) > 1000
