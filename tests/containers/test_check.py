"""The permission check of `helm test`, against an API server that grants a given set of verbs."""

from types import SimpleNamespace

import pytest

from containers.check import FORBIDDEN, NEEDED, _permissions

kubernetes = pytest.importorskip("kubernetes")


def verbs_of(table):
    return {(*resource, verb) for resource, verbs in table.items() for verb in verbs}


@pytest.fixture
def problems(monkeypatch):
    """Run the check with these verbs granted."""

    def run(granted):
        def review(_, question):
            asked = question.spec.resource_attributes
            verb = (asked.group, asked.resource, asked.subresource, asked.verb)
            return SimpleNamespace(status=SimpleNamespace(allowed=verb in granted))

        api = kubernetes.client.AuthorizationV1Api
        monkeypatch.setattr("collage.cluster.kubernetes.api.open_client", lambda: None)
        monkeypatch.setattr(api, "create_self_subject_access_review", review)
        monkeypatch.setenv("COLLAGE_CLUSTER__NAMESPACE", "team")
        return list(_permissions())

    return run


def test_the_needed_verbs_and_no_others_pass(problems):
    assert problems(verbs_of(NEEDED)) == []


def test_a_missing_verb_is_a_problem(problems):
    granted = verbs_of(NEEDED) - {("", "pods", "log", "get")}
    assert problems(granted) == ["this account may not get pods/log in team"]


def test_a_forbidden_verb_is_a_problem(problems):
    granted = verbs_of(NEEDED) | {("", "secrets", "", "list")}
    assert problems(granted) == ["this account may list secrets in team"]


def test_no_verb_is_both_needed_and_forbidden():
    assert not verbs_of(NEEDED) & verbs_of(FORBIDDEN)
