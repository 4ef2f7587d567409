"""All output of an installation's parts, by place, for the search for secrets."""

import base64
import io
import json
import zipfile
from urllib.parse import quote

PAGE = 200
PREFECT = ("logs", "artifacts", "flow_runs", "task_runs", "deployments", "work_pools", "automations",
           "variables", "block_documents")  # fmt: skip


class Places:
    """Place -> its bytes; archives are opened."""

    def __init__(self):
        self._found = {}

    def add(self, place, data):
        self._found[place] = data
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for name in archive.namelist():
                    self._found[f"{place}!{name}"] = archive.read(name)

    def add_folder(self, place, folder):
        """Logs, databases, caches: all files below."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.add(f"{place}/{file.relative_to(folder)}", file.read_bytes())

    def add_store(self, place, store):
        """All objects: manifests, blobs, costs, aliases, results."""
        for entry in store.entries(""):
            self.add(f"{place}/{entry.key}", store.read(entry.key).data)

    def add_prefect(self, place, client):
        """The API's data of runs: logs, artifacts, states, parameters, events."""
        for kind in PREFECT:
            rows, page = [], None
            while page is None or len(page) == PAGE:
                body = {"limit": PAGE, "offset": len(rows)}
                answer = client._client.post(f"/{kind}/filter", json=body)
                answer.raise_for_status()
                page = answer.json()
                rows += page
            self.add(f"{place}/{kind}", json.dumps(rows).encode())
        answer = client._client.post("/events/filter", json={"limit": 50})
        events = answer.json()
        rows = events["events"]
        while events.get("next_page"):
            events = client._client.get(events["next_page"]).json()
            rows += events["events"]
        self.add(f"{place}/events", json.dumps(rows).encode())

    def with_word(self, word):
        """Name the places that have the word in them, as it is or encoded as clients send it."""
        return self.with_data(*_forms(word))

    def with_data(self, *forms):
        """Name the places that have one of these byte strings in them."""
        return {place for place, data in self._found.items() if any(form in data for form in forms)}


def _forms(word):
    """As it is, in an URL, in JSON, and in base64 wherever in a longer text it begins."""
    data = word.encode()
    forms = {data, quote(word, safe="").encode(), json.dumps(word)[1:-1].encode()}
    for before in range(3):
        text = base64.b64encode(b"x" * before + data)
        start = (before * 8 + 5) // 6
        forms.add(text[start : len(text) - 4])
    return forms
