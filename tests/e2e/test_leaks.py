"""The search for secrets finds each kind in every place, and ignores examples."""

import io
import random
import string
import tarfile

import pytest

from tests.e2e.leaks import PATTERNS, find_secrets, own_secrets, scan

pytestmark = pytest.mark.full

_random = random.Random(0)


def some(alphabet, count):
    return "".join(_random.choices(alphabet, k=count))


UPPER, WORDS = string.ascii_uppercase, string.ascii_letters + string.digits
KEY = "\n".join(some(WORDS, 64) for _ in range(12))
PLANTED = {
    "private key": f"-----BEGIN RSA PRIVATE KEY-----\n{KEY}\n-----END RSA PRIVATE KEY-----\n",
    "AWS access key": f"aws_access_key_id = {'AKIA' + some(UPPER, 16)}\n",
    "GitHub token": f"token: {'ghp_' + some(WORDS, 36)}",
    "GitLab token": f"glpat-{some(WORDS, 20)}",
    "Google key": f"key={'AIza' + some(WORDS, 35)}",
    "Hugging Face token": f"hf_{some(string.ascii_letters, 34)}",
    "PyPI token": f"pypi-AgE{some(WORDS, 80)}",
    "Slack token": f"xoxb-{some(string.digits, 12)}-{some(WORDS, 24)}",
    "password in a URL": f"index-url = https://me:{some(WORDS, 12)}@pypi.internal.net/simple",
}


def archive(folder, files):
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    with tarfile.open(folder / "image.tar", "w") as tar:
        entry = tarfile.TarInfo("layer.tar")
        entry.size = len(layer.getvalue())
        tar.addfile(entry, io.BytesIO(layer.getvalue()))
    return folder / "image.tar"


def test_all_kinds_are_planted():
    assert PLANTED.keys() == PATTERNS.keys()


@pytest.mark.parametrize("kind", PLANTED)
def test_each_kind_is_found_in_a_layer(kind, tmp_path):
    created = archive(tmp_path, {"etc/plain": b"x" * 999, "app/conf": PLANTED[kind].encode()})
    assert list(scan(created, {}, set())) == [f"app/conf: {kind}"]


def test_a_value_of_this_machine_is_found_and_not_told(tmp_path):
    value = some(WORDS, 20)
    own = own_secrets({"REGISTRY_TOKEN": value, "API_KEY": "short", "HOME": value})
    assert own == {"REGISTRY_TOKEN": value.encode()}
    created = archive(tmp_path, {"root/.netrc": f"login {value}".encode()})
    (said,) = scan(created, own, set())
    assert said == "root/.netrc: the value of REGISTRY_TOKEN"


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "-----BEGIN PRIVATE KEY-----\\n...",
        "https://user:password@example.com",
        "NAKIA" + "A" * 16,
        "https://{user}:{password}@host.com",
    ],
)
def test_an_example_is_no_secret(text):
    assert find_secrets(text.encode(), {}) == set()


def test_a_layer_that_was_scanned_is_not_scanned_again(tmp_path):
    created = archive(tmp_path, {"app/conf": PLANTED["GitHub token"].encode()})
    observed = set()
    assert list(scan(created, {}, observed))
    assert not list(scan(created, {}, observed))
