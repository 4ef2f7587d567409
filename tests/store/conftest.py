import importlib.util
import itertools
import json

import pytest

from collage.store import open_store
from tests.runtime.conftest import gate_entry
from tests.servers.fixtures import running
from tests.store import policies, versitygw
from tests.store.proxy import Proxy

PREFIX = "team/collage"
NO_OBSTORE = "obstore is not installed: pip install 'collage[obstore]'"
_buckets = itertools.count()


OUTPUT = {"name": "y", "shape": [1], "dtype": "float32"}


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    if importlib.util.find_spec("boto3") is None:
        pytest.skip("boto3 is not installed: pip install 'collage[s3]'")
    with running(versitygw.Server, tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def credentials(monkeypatch, tmp_path):
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", versitygw.ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", versitygw.SECRET)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def bucket(s3_server, credentials):
    """A bucket of its own for the test, with a client that goes to the server directly."""
    import boto3

    client = boto3.client("s3", endpoint_url=s3_server.url, region_name="us-east-1")
    name = f"bucket-{next(_buckets)}"
    client.create_bucket(Bucket=name)
    client.put_bucket_policy(Bucket=name, Policy=policies.of_bucket(name, PREFIX))
    yield Bucket(name, client)
    client.close()


class Bucket:
    def __init__(self, name, client):
        self.name = name
        self.client = client

    def objects(self):
        actual = self.client.list_objects_v2(Bucket=self.name)
        return sorted(item["Key"] for item in actual.get("Contents", ()))

    def address(self, endpoint, **settings):
        settings = {
            "endpoint": endpoint, "region": "us-east-1", "addressing": "path", "retries": "standard",
            "attempts": 3, "timeout_s": 1, "part_bytes": 5 << 20, **settings,
        }  # fmt: skip
        return f"s3://{self.name}/{PREFIX}?" + "&".join(f"{k}={v}" for k, v in settings.items())


@pytest.fixture
def s3_address(bucket, s3_server):
    return bucket.address(s3_server.url, timeout_s=20)


@pytest.fixture
def address_below(bucket, s3_address):
    """Make the address of a store in a folder of the other's; from then on users have rights there alone."""

    def make(folder):
        policy = policies.of_bucket(bucket.name, f"{PREFIX}/{folder}")
        bucket.client.put_bucket_policy(Bucket=bucket.name, Policy=policy)
        return s3_address.replace("?", f"/{folder}?", 1)

    return make


@pytest.fixture
def proxy(s3_server, bucket):
    created = Proxy(s3_server.url, hang_s=3.0, client=bucket.client)
    yield created
    created.close()


@pytest.fixture
def cloud(monkeypatch):
    """Buckets of gs:// and az:// in the memory of this process."""
    obstore = pytest.importorskip("obstore.store", reason=NO_OBSTORE)
    from collage.store import cloud_client

    buckets = {}

    def open_bucket(settings):
        return buckets.setdefault((settings.scheme, settings.bucket), obstore.MemoryStore())

    monkeypatch.setattr(cloud_client, "_open", open_bucket)
    return open_bucket


@pytest.fixture(params=["directory", "s3", "cloud"])
def address(request, tmp_path):
    """The address of an empty store: every test of the protocol runs against all."""
    if request.param == "directory":
        return str(tmp_path / "store")
    if request.param == "cloud":
        request.getfixturevalue("cloud")
        return f"gs://bucket/{PREFIX}?attempts=1"
    return request.getfixturevalue("s3_address")


@pytest.fixture(params=["directory", "s3"])
def process_address(request, tmp_path):
    """The address of an empty store that other processes open too."""
    if request.param == "directory":
        return str(tmp_path / "store")
    return request.getfixturevalue("s3_address")


@pytest.fixture
def store(address):
    return open_store(address)


@pytest.fixture
def make_bundle(tmp_path):
    """Make a folder with the files, and a manifest that the runtime reads."""
    from collage.store.blobs import digest_of

    def make(name="bundle", verdicts=None, **files):
        folder = tmp_path / name
        folder.mkdir()
        contents = {"model.so": b"code", "plan.json": b"[]"} | {
            file.replace("_", "."): data for file, data in files.items()
        }
        for file, data in contents.items():
            (folder / file).write_bytes(data)
        manifest = {
            "schema_version": 3, "executable": "model.so", "threads": 1,
            "functions": [{"function": name, "inputs": [], "outputs": [OUTPUT]} for name in verdicts or {}],
            "gate": [gate_entry(*verdict) for verdict in (verdicts or {}).items()],
            "cpu": {"model": "cpu", "features": []}, "libraries": {},
            "files": {file: digest_of(data) for file, data in contents.items()},
        }  # fmt: skip
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    return make


@pytest.fixture
def direct(s3_address):
    """The same store without the proxy."""
    return open_store(s3_address, writes=False)


@pytest.fixture
def faulty(bucket, proxy):
    return open_store(bucket.address(proxy.url), writes=False)
