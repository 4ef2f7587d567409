"""The KServe examples: their commands are ones that the server takes, their pods pass *restricted*."""

from pathlib import Path

import pytest
import yaml

from collage.option_text import parse_size
from collage.store.s3_settings import parse_s3
from containers.serve import _parser

FOLDER = Path(__file__).parents[2] / "examples" / "kserve"


def specs():
    runtime = yaml.safe_load((FOLDER / "serving-runtime.yaml").read_text())
    service = yaml.safe_load((FOLDER / "inference-service.yaml").read_text())
    assert (runtime["kind"], service["kind"]) == ("ServingRuntime", "InferenceService")
    assert runtime["apiVersion"] == "serving.kserve.io/v1alpha1"
    assert service["apiVersion"] == "serving.kserve.io/v1beta1"
    return [runtime["spec"], service["spec"]["predictor"]]


@pytest.mark.parametrize("spec", specs())
def test_the_command_is_one_that_the_server_takes(spec):
    (container,) = spec["containers"]
    assert container["name"] == "kserve-container"
    assert container["command"] == ["python", "-m", "containers.serve"]
    parsed = _parser().parse_args(container["args"])
    assert container["ports"][0]["containerPort"] == parsed.port
    if parsed.alias:
        assert parse_s3(parsed.bundle).bucket == "models"
    grace_s = spec.get("terminationGracePeriodSeconds", 30)  # Kubernetes' default
    assert grace_s > parsed.drain + parsed.stop_timeout
    limit = parse_size(container["resources"]["limits"]["memory"] + "B")
    assert limit - parsed.memory - (128 << 20) >= 1 << 30, "a GiB is left for the model"
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"].startswith("/v2/health/")


@pytest.mark.parametrize("spec", specs())
def test_pods_are_restricted_and_have_cores_of_their_own(spec):
    from kubernetes_validate import validate

    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context["runAsNonRoot"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    scratch = [volume for volume in spec["volumes"] if "emptyDir" in volume]
    assert scratch
    assert all(volume["emptyDir"]["sizeLimit"] for volume in scratch)
    assert all("configMap" in volume for volume in spec["volumes"] if volume not in scratch)
    fields = ("containers", "volumes", "terminationGracePeriodSeconds")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {name: spec[name] for name in fields if name in spec},
    }
    validate(pod, "1.34", strict=True)
