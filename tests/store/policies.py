"""The policies that the chart's page gives to users of a store, as one policy of a bucket."""

import json
from pathlib import Path
from typing import Any

from tests.store.versitygw import USERS

FOLDER = Path(__file__).parents[2] / "helm" / "collage" / "policies"


def policy(user: str, bucket: str, prefix: str) -> dict[str, Any]:
    """Return a user's policy with the names filled in, as an operator does it."""
    text = (FOLDER / f"{user}.json").read_text()
    return json.loads(text.replace("BUCKET", bucket).replace("PREFIX", prefix))


def of_bucket(bucket: str, prefix: str) -> str:
    """Say the same to a bucket, for services whose users have no policies."""
    statements = [
        {**statement, "Sid": f"{user}{statement['Sid']}", "Principal": {"AWS": [user]}}
        for user in USERS
        for statement in policy(user, bucket, prefix)["Statement"]
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})
