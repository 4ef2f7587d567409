"""Links to reports: an address of the object, a signed one that a browser opens, or a gateway's."""

import pytest

from flows.artifacts import report_url

DIGEST = "ab" * 32
KEY = f"blobs/ab/{DIGEST}"
S3 = "s3://models/team?endpoint=http://minio:9000&addressing=path&region=us-east-1"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch):
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")


def test_a_plain_link_is_the_objects_address(tmp_path):
    assert report_url(S3, DIGEST) == f"s3://models/team/{KEY}"
    assert report_url(str(tmp_path), DIGEST) == f"file://{tmp_path}/{KEY}"


def test_a_signed_link_shows_the_page_for_its_time(tmp_path):
    link = report_url(S3, DIGEST, link_s=3600)
    assert link.startswith(f"http://minio:9000/models/team/{KEY}?")
    for part in ("X-Amz-Signature=", "X-Amz-Expires=3600", "response-content-type=text%2Fhtml"):
        assert part in link
    assert "not-a-secret" not in link
    assert report_url(str(tmp_path), DIGEST, link_s=3600) == f"file://{tmp_path}/{KEY}"


@pytest.mark.parametrize(
    "base", ["https://reports.example.org/x", "https://reports.example.org/x/"]
)
def test_a_gateway_comes_before_the_key(base):
    link = report_url(S3, DIGEST, link_s=3600, base=base)
    assert link == f"https://reports.example.org/x/{KEY}"
