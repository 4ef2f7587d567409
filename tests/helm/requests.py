"""Requests to a real API server as they go over the wire, of whoever's token it is."""

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial

from tests.support import waiting

MERGE = "application/merge-patch+json"
VERBS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
wait_until = partial(waiting.wait_until, timeout_s=30.0, every_s=0.2)
_OF_ONE = ("get", "update", "patch", "delete")


@dataclass(frozen=True)
class Resource:
    """A resource as the server announces it; `name` has the sub-resource in it, e.g. "pods/log"."""

    group: str
    version: str
    name: str
    namespaced: bool
    verbs: tuple[str, ...]

    def answers(self, verb: str) -> bool:
        return verb in self.verbs

    def path(self, verb: str, namespace: str) -> str:
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        plural, _, sub = self.name.partition("/")
        place = f"{base}/namespaces/{namespace}" if self.namespaced else base
        named = f"/absent/{sub}" if sub else "/absent" if verb in _OF_ONE else ""
        watch = "?watch=true&timeoutSeconds=1" if verb == "watch" else ""
        return f"{place}/{plural}{named}{watch}"


def resources(plane):
    """List all resources and sub-resources that the server has, in the version it prefers."""
    groups = ask(plane, "GET", "/apis")[1]["groups"]
    named = [("", "v1", "/api/v1")]
    for group in groups:
        version = group["preferredVersion"]
        named.append((group["name"], version["version"], f"/apis/{version['groupVersion']}"))
    for group, version, path in named:
        for resource in ask(plane, "GET", path)[1]["resources"]:
            verbs = tuple(resource["verbs"])
            yield Resource(group, version, resource["name"], resource["namespaced"], verbs)


def ask(plane, method, path, body=None, kind="application/json", token=None, headers=()):
    """Ask the API server; returns the HTTP status and what it answers."""
    reported = plane.configuration(token)
    request = urllib.request.Request(
        plane.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": reported.api_key["authorization"], "Content-Type": kind, **dict(headers)
        },
    )  # fmt: skip
    context = ssl.create_default_context(cafile=reported.ssl_ca_cert)
    try:
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            said = answer.read()
            return answer.status, json.loads(said) if said.startswith(b"{") else {}
    except urllib.error.HTTPError as error:
        with error:
            said = error.read()
            return error.code, json.loads(said) if said.startswith(b"{") else {}


def items(plane, path):
    status, answer = ask(plane, "GET", path)
    assert status == 200, answer
    return answer["items"]


def status_of(plane, token, resource, verb, namespace):
    """Ask for real; returns the HTTP status. What is named does not exist, so nothing is changed."""
    kind = MERGE if verb == "patch" else "application/json"
    body = {} if verb in ("create", "update", "patch") else None
    return ask(plane, VERBS[verb], resource.path(verb, namespace), body, kind, token)[0]


def may(plane, token, namespace, group, resource, verb):
    """Let the account ask whether it may; for verbs that no request has."""
    attributes = {"namespace": namespace, "group": group, "resource": resource, "verb": verb}
    body = {"spec": {"resourceAttributes": attributes}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return ask(plane, "POST", path, body, token=token)[1]["status"]["allowed"]


def rules_of(plane, token, namespace):
    """Return (group, resource, verb) of all rules that the server applies to the account there."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    status = ask(plane, "POST", path, {"spec": {"namespace": namespace}}, token=token)[1]["status"]
    assert not status["incomplete"], status
    return {
        (group, resource, verb)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
