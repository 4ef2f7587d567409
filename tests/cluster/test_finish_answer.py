"""What the gate of a finishing pod says reaches whoever waits: as a verdict, and no failed Job."""

import pytest

from collage.cluster.controller.compile_service import ClusterCompileService
from collage.cluster.pod import answers
from collage.errors import GateError, UnprovenError
from collage.pipeline.compile_service import node_information
from collage.pipeline.request import read_request, submit
from collage.report.progress import SilentProgress
from collage.store import open_store
from tests.support.models import small_model

ANSWER = "answers/finish.json"
"""Of the pod."""


class Waiting(ClusterCompileService):
    """A compile service whose pod has answered."""

    def __init__(self, store, facts):
        self._store, self._found = store, facts

    def _known_facts(self, request):
        return self._found

    def _ask(self, kind, request, arguments, command):
        return self._store.read(ANSWER).data


@pytest.mark.parametrize("kind", [GateError, UnprovenError])
def test_the_gates_refusal_is_an_answer(kind, tmp_path, monkeypatch):
    def refuse(*_):
        raise kind("main is 3.1 % slower")

    monkeypatch.setattr(answers.LocalCompileService, "finish", refuse)
    store = open_store(tmp_path / "store")
    digest = submit(store, small_model(tmp_path / "small.onnx")).digest
    request = read_request(store, digest)
    facts = node_information(request)
    answers.answer_finish(
        str(tmp_path / "store"), digest, facts.environment.digest, ANSWER, scratch=tmp_path
    )
    with pytest.raises(GateError, match="slower") as refusal:
        Waiting(store, facts).finish(request, SilentProgress())
    assert type(refusal.value) is kind
