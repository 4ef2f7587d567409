"""Which test runs which command line. A new line in a document needs an entry in one of these three."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Run:
    """How `test_collage.py` runs a line in its folder of small models.

    Attributes:
        change: words of the line that become others: placeholders, and what would take long.
        after: lines that run before it, once; those that are listed are changed as they say.
        says: text that the output contains.
    """

    change: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    says: str = ""


COMPILE = "collage compile model.onnx -o bundle"
COMPILE_OTHER = "collage compile det.onnx --shape x=1,3,480,480"
PUBLISH = "collage publish bundle STORE --alias ocr/production"
CANDIDATE = "collage publish bundle STORE --alias ocr/candidate"
PRIVATE = "openssl genpkey -algorithm ed25519 -out key.pem"
PUBLIC = "openssl pkey -in key.pem -pubout -out key.pub"
SIGN = "collage publish bundle STORE --alias ocr/production --sign-key key.pem"
FETCH_SIGNED = "collage fetch STORE --alias ocr/production /srv/ocr --verify-key key.pub"

RUN: Mapping[str, Run] = {
    "collage inspect det.onnx": Run(says="--dim"),
    COMPILE: Run(says="bundle"),
    COMPILE_OTHER: Run({"x=1,3,480,480": "x=1,3,256,256"}, says="det.collage"),
    "collage compile rec.onnx --shape x=1,3,48,320 --shape x=1,3,48,640": Run(
        {"x=1,3,48,320": "x=1,3,64,256", "x=1,3,48,640": "x=1,3,64,384"}, says="rec.collage"
    ),
    "collage compile rec.onnx --samples photos": Run(says="rec.collage"),
    "collage compile vad.onnx --input sr=16000": Run(
        {"vad.onnx": "model.onnx", "sr=16000": "x=0.5"}, says="model.collage"
    ),
    "collage compile encoder.onnx decoder.onnx -o speech": Run(says="speech"),
    "collage compile models/speech --dim batch=1 --shape decoder/past=1,12,64": Run(says="speech.collage"),
    "collage compile model.onnx --precision auto": Run(says="model.collage"),
    "collage compile model.onnx --keep-nan": Run(says="model.collage"),
    "collage compile model.onnx --effort thorough": Run(says="model.collage"),
    "collage compile model.onnx --tune 5m": Run({"5m": "1s"}, says="model.collage"),
    "collage compile model.onnx --store STORE": Run(says="model.collage"),
    "collage run bundle": Run(after=(COMPILE,), says="golden data: equal"),
    "collage bench bundle --model model.onnx": Run(after=(COMPILE,), says="onnxruntime"),
    "collage bench BUNDLE --shapes INPUT=1,3,480": Run(
        {"BUNDLE": "det.collage", "INPUT=1,3,480": "x=1,3,128,128"}, after=(COMPILE_OTHER,), says="fallback"
    ),
    "collage report bundle": Run(after=(COMPILE,), says="report.html"),
    "collage explain bundle --node 12": Run({"12": "1"}, after=(COMPILE,), says="onnxruntime"),
    "collage diff bundle other": Run({"other": "det.collage"}, after=(COMPILE, COMPILE_OTHER)),
    "collage backends": Run(says="onnxruntime"),
    "collage doctor": Run(says="ok"),
    PUBLISH: Run(after=(COMPILE,), says="ocr/production now points to it"),
    CANDIDATE: Run(after=(COMPILE,), says="ocr/candidate now points to it"),
    "collage fetch STORE ocr/production -o bundle": Run(
        {"bundle": "fetched"}, after=(PUBLISH,), says="fetched"
    ),
    "collage fetch STORE --alias ocr/production /srv/ocr": Run(
        {"/srv/ocr": "srv"}, after=(PUBLISH,), says="srv"
    ),
    "collage gc STORE": Run(after=(PUBLISH,), says="would delete"),
    "collage usage STORE": Run(after=(PUBLISH,), says="total"),
    "collage usage STORE --day 2026-11-26 --by place --price gpu=0.0011 --price gpu.build=0.0001": Run(
        after=(PUBLISH,), says="total"
    ),
    "collage aliases STORE --json": Run(after=(PUBLISH,), says="ocr/production"),
    "collage alias STORE ocr/production ocr/candidate --expect DIGEST": Run(
        after=(PUBLISH, CANDIDATE), says="ocr/production"
    ),
    "collage alias STORE NAME OLD --expect BAD": Run(
        {"NAME": "ocr/bad", "OLD": "DIGEST"},
        after=(PUBLISH, COMPILE_OTHER, "collage publish det.collage STORE --alias ocr/bad"),
        says="ocr/bad",
    ),
    "collage unalias STORE ocr/old --expect DIGEST": Run(
        after=(COMPILE, "collage publish bundle STORE --alias ocr/old"), says="is removed"
    ),
    "collage unalias STORE NAME --expect DIGEST": Run(
        {"NAME": "ocr/name"},
        after=(COMPILE, "collage publish bundle STORE --alias ocr/name"),
        says="is removed",
    ),
    "collage unpublish STORE DIGEST": Run(
        {"STORE": "emptied"},
        after=(COMPILE, "collage publish bundle emptied"),
        says="is unpublished",
    ),
    "collage register REGISTRY NAME VERSION model.onnx": Run(
        {"NAME": "small", "VERSION": "1"}, says="small version 1"
    ),
    "collage register REGISTRY speech 1 encoder.onnx decoder.onnx": Run(says="speech version 1"),
    PRIVATE: Run(),
    PUBLIC: Run(after=(PRIVATE,)),
    SIGN: Run(after=(COMPILE, PRIVATE, PUBLIC)),
    FETCH_SIGNED: Run({"/srv/ocr": "signed"}, after=(SIGN,), says="signed"),
    "collage run /srv/ocr --verify-key key.pub": Run(
        {"/srv/ocr": "signed"}, after=(FETCH_SIGNED,), says="golden data: equal"
    ),
    "collage publish DIR STORE --alias NAME --sign-key new.pem": Run(
        {"DIR": "bundle", "NAME": "ocr/rotated"},
        after=(COMPILE, "openssl genpkey -algorithm ed25519 -out new.pem"),
        says="ocr/rotated now points to it",
    ),
}  # fmt: skip

MAKE = "tests/command_lines/test_others.py::test_make_has_the_target"
PIP = "tests/command_lines/test_others.py::test_pip_is_given_extras_and_packages_that_exist"
HELM_INSTALL = "tests/command_lines/test_others.py::test_helm_renders_what_the_line_installs"
HELM_TEST = "tests/helm/test_api_server.py::test_hooks_and_tests_run_on_a_node"
PYTEST = "tests/command_lines/test_others.py::test_pytest_finds_the_tests_of_the_line"
FLOWS = "tests/flows/test_end_to_end.py::test_an_alias_is_all_it_takes"
PREFECT = "tests/flows/test_command_lines.py::test_prefects_lines_of_the_documents_run"
ADOPT = "tests/flows/test_releases.py::test_a_release_adopts_deployments_of_before_it_had_a_name"
WORKER = "tests/flows/test_releases.py::test_a_worker_refuses_the_pool_of_another"

ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("make demo", "make test", "make test-all", "make images", "make pipeline", "make e2e", "make bench",
         "make cuda-check", "make gpu-check", "make chart-docs", "make setup", "make lint", "make types",
         "make docs", "make notice", "make onnx-tests", "make compat",
         "make compat COMPAT=prefect"),
        MAKE,
    ),
    **dict.fromkeys(
        ("pip install collage[runtime]", "pip install 'collage[serve,s3]'", "pip install 'collage[s3]'",
         "pip install 'collage[obstore]'",
         "pip install 'collage[sign]'", "pip install scipy-openblas32"),
        PIP,
    ),
    **dict.fromkeys(
        (
            ".venv/bin/python -m pytest tests/search/test_against_brute_force.py -k k_best",
            ".venv/bin/python -m pytest tests/rules/test_pattern.py",
            ".venv/bin/python -m pytest tests/graph tests/frontend tests/rules tests/search tests/cost",
            ".venv/bin/python -m pytest tests/measure tests/verify tests/pipeline tests/tuning",
            ".venv/bin/python -m pytest tests/backends tests/runtime tests/bundle tests/report",
            ".venv/bin/python -m pytest tests/store/test_protocol.py -k directory",
            ".venv/bin/python -m pytest tests/rules/test_against_fuse_ops.py",
        ),
        PYTEST,
    ),
    **dict.fromkeys(
        (
            "helm install collage helm/collage --set image.repository=REGISTRY/collage"
            " --set store.uri=s3://models/collage --set prefect.apiUrl=https://prefect.example.com/api"
            " --set signing.existingSecret=collage-signing",
            "helm install collage helm/collage -n collage"
            " --set image.repository=registry.example/collage --set store.uri='s3://models/collage'"
            " --set signing.existingSecret=collage-signing --set prefect.apiUrl=http://prefect-server:4200/api",
            "helm install collage helm/collage --namespace collage"
            " --set image.repository=registry.example.com/collage --set store.uri=s3://models/collage"
            " --set signing.existingSecret=collage-signing"
            " --set prefect.apiUrl=http://prefect-server.prefect:4200/api",
        ),
        HELM_INSTALL,
    ),
    "helm test collage -n collage": HELM_TEST,
    "helm test collage --namespace collage": HELM_TEST,
    "openssl pkey -pubin -in key.pub -outform DER":
        "tests/runtime/test_signature.py::test_keys_of_openssl_sign_and_verify",
    "prefect server start": FLOWS,
    "python -m flows.setup": FLOWS,
    "python -m flows.setup --adopt": ADOPT,
    "python -m flows.worker": WORKER,
    "python -m flows.worker --limit 1 --work-queue reconcile": WORKER,
    "python -m benchmarks.registry_hour":
        "tests/benchmarks/test_registry_hour.py::test_the_document_has_the_tables_of_its_command",
    ".venv/bin/python -m benchmarks.local_functions":
        "tests/benchmarks/test_local_functions.py::test_a_row_has_a_number_for_each_column",
    "prefect worker start --pool collage": FLOWS,
    "prefect deployment run optimize-model/optimize --param model=/path/model.onnx": PREFECT,
    "prefect gcl inspect": PREFECT,
    "prefect gcl update --active-slots": PREFECT,
    "prefect gcl delete": PREFECT,
    "prefect deployment delete": PREFECT,
    "python -m tests.quiet --seconds 60": "tests/quiet/test_quiet.py::test_a_compile_is_quiet",
    "python -m containers.serve --bundle DIR": "tests/containers/test_serve.py::test_health_and_metadata",
    "python -m containers.receiver": "tests/containers/test_receiver.py::test_the_alias_starts_one_run",
    "collage compile mlp.onnx --backends openblas_backend:OpenBlasBackend,onnxruntime":
        "tests/test_user_backend.py::test_it_competes_with_the_built_in_ones",
    "kubectl get jobs,pods -n collage -l collage.dev/run=RUN":
        "tests/command_lines/test_others.py::test_jobs_and_pods_have_the_label_that_is_asked_for",
    "kubectl exec deployment/collage-worker -- python -m containers.check prefect": HELM_TEST,
    "python -m benchmarks.run_dashboard":
        "tests/benchmarks/test_run_dashboard.py::test_a_simulated_day_is_one_that_prometheus_reads",
    "python -m containers.metrics_exporter":
        "tests/flows/test_run_metrics.py::test_every_panel_has_data_of_a_run",
    "kubectl describe deployment RELEASE-worker":
        "tests/command_lines/test_others.py::test_deployments_have_the_names_that_are_asked_for",
    "kubectl describe deployment RELEASE-receiver":
        "tests/command_lines/test_others.py::test_deployments_have_the_names_that_are_asked_for",
}  # fmt: skip

EXCEPTIONS: Mapping[str, str] = {
    "pip install .": "of a package that a reader writes; `site` of tests/test_user_backend.py stands for it",
    "python -m benchmarks.models --threads 1": "takes hours; it is the first line of `make bench`",
    "python -m benchmarks.models": "takes hours; it is the first line of `make bench`",
    "python -m benchmarks.enumeration": "takes minutes; tests/rules/test_candidates.py enumerates its graphs",
    "python -m benchmarks.shapes --weight-heavy onnxruntime": "minutes; tests/assemble has a smaller one",
    "collage run --save": "names an option of a command that is run above",
    "kubectl describe pod -n collage POD": "Kubernetes' own; nothing of ours is in it",
    "kubectl logs deployment/RELEASE-metrics": "Kubernetes' own; nothing of ours is in it",
    "kubectl delete jobs -l app.kubernetes.io/part-of=collage": "Kubernetes' own; tests/helm/test_access.py"
    " finds Jobs by this label",
    "kubectl rollout restart deployment -n collage": "Kubernetes' own; nothing of ours is in it",
    "kubectl rollout restart": "Kubernetes' own; nothing of ours is in it",
    "kubectl logs ...": "Kubernetes' own; tests/e2e/leaks.py looks for secrets in logs through the API",
    "openssl rand -hex 32 > record.key": "openssl alone; tests/store/test_record_keys.py reads such a file",
    "kubectl create namespace collage": "Kubernetes' own; nothing of ours is in it",
    **dict.fromkeys(
        (
            "kubectl create secret generic collage-signing --namespace collage --from-file=key.pem",
            "kubectl create secret generic collage-signing -n collage --from-file=key.pem",
            "kubectl create secret generic collage-record-key"
            " --from-literal=COLLAGE_RECORD_KEY=$(openssl rand -hex 32)",
            "kubectl create configmap collage-trusted --from-file=key.pub",
        ),
        "Kubernetes' own; tests/e2e/test_chart.py makes the same through the API",
    ),
    "kubectl describe workload": "Kueue's own object: Kueue is in no test cluster",
    "kubectl delete job JOB": "Kubernetes' own; tests/cluster/test_crashes.py deletes Jobs through the API",
}
