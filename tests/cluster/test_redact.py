import pytest

from collage.cluster.redact import HIDDEN, redact


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("AWS_SECRET_ACCESS_KEY=abc/def+1", "abc/def+1"),
        ("{'password': 'hunter2'}", "hunter2"),
        ('"access_key": "xyz123"', "xyz123"),
        ("Authorization: Bearer abc.def", "abc.def"),
        ("https://s3/x?X-Amz-Signature=0123abcd&x=1", "0123abcd"),
        ("http://me:pw@host/path", "me:pw"),
        ("key AKIAABCDEFGHIJKLMNOP failed", "AKIAABCDEFGHIJKLMNOP"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text, secret):
    found = redact(text)
    assert secret not in found
    assert HIDDEN in found


def test_values_of_secret_variables_are_hidden(monkeypatch):
    monkeypatch.setenv("STORE_PASSWORD", "correct horse")
    assert redact("it said correct horse, twice") == f"it said {HIDDEN}, twice"


@pytest.mark.parametrize("text", ["key of onednn on 0x1f is 12ab", "s3://bucket/costs/ab.jsonl"])
def test_ordinary_words_stay(text):
    assert redact(text) == text
