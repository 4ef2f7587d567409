"""What the tests of a failing S3 server store, and how they name what fails."""

from collage.store.blobs import blob_key, digest_of
from tests.store.proxy import Fault

DATA = bytes(range(256)) * 1000


BIG = DATA * 50


DIGEST = digest_of(DATA)


KEY = f"team/collage/{blob_key(DIGEST)}"


def again(fault, **changes):
    """A fault of its own for each test: faults count."""
    return Fault(**{**vars(fault), "hit": 0, **changes})


def named(fault):
    return f"{fault.kind}{fault.status or ''}"
