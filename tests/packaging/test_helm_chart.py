"""The Helm chart: rendered by Helm's own engine, manifests valid by Kubernetes' strict schemas, values by the chart's.

The engine and the schemas come with the extra ``release``.
"""

import shlex

import pytest
import typer
import yaml

from tests.doubles.processes import ROOT
from undersong_common.version import VERSION

pytestmark = pytest.mark.slow

CHART = ROOT / "docker" / "helm" / "undersong-coordinator"
LEAST = {"addresses": ["fed.example.org:7443"], "console": {"host": "console.example.org", "tlsSecret": "console-tls"}}
KUBERNETES = ("1.27", "1.31", "1.34")


@pytest.fixture(scope="module")
def helm():
    return pytest.importorskip("helm_python", reason="pip install '.[release]'")


@pytest.fixture(scope="module")
def schemas():
    return pytest.importorskip("kubernetes_validate", reason="pip install '.[release]'")


def rendered(helm, **changes):
    """The manifests for these values, by kind and name."""
    with helm.Chart.load(CHART) as chart:
        values = chart.merge_values(merged(LEAST, changes))
        chart.validate_schema(values)
        found = chart.render(values, name="fed", namespace="federation")
    texts = [text for name, text in found.items() if name.endswith(".yaml")]
    manifests = [each for text in texts for each in yaml.safe_load_all(text) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


def merged(values, changes):
    both = {key: {**values[key], **changes[key]} for key in changes if isinstance(values.get(key), dict)}
    return {**values, **changes, **both}


VARIANTS = {
    "least": {},
    "all": {
        "addresses": ["fed.example.org:7443", "other.example.org:443"],
        "image": {"digest": "sha256:" + "0" * 64},
        "environmentSecret": "keys",
        "storage": {"className": "fast"},
        "service": {"type": "ClusterIP", "annotations": {"example.org/zone": "a"}},
        "ingress": {"enabled": True},
        "console": {"tasksConfigMap": "tasks", "oidc": {"issuer": "https://id.example.org", "client": "undersong"}},
    },
    "no console": {"console": {"enabled": False}, "ingress": {"enabled": True}},
}


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_manifest_is_valid_by_the_strict_schema(helm, schemas, variant, version):
    for manifest in rendered(helm, **VARIANTS[variant]).values():
        schemas.validate(manifest, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found(helm, schemas):
    manifest = rendered(helm)["Service", "fed"]
    manifest["spec"]["tlsPassThrough"] = True
    with pytest.raises(schemas.ValidationError):
        schemas.validate(manifest, KUBERNETES[-1], strict=True)


def test_helm_finds_nothing_to_remark(helm):
    report = helm.lint(CHART, LEAST, strict=True)
    assert [each for each in report["messages"] if each["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"addresses": []},
        {"addresses": ["fed.example.org"]},
        {"console": {"host": ""}},
        {"console": {"tlsSecret": ""}},
        {"image": {"digest": "latest"}},
        {"replicas": 2},
    ],
    ids=str,
)
def test_values_that_cannot_work_are_refused(helm, changes):
    with pytest.raises(helm.HelmError):
        rendered(helm, **changes)


def containers(helm, **changes):
    pod = rendered(helm, **changes)["StatefulSet", "fed"]["spec"]["template"]["spec"]
    return pod, {each["name"]: each for each in (*pod["initContainers"], *pod["containers"])}


def test_its_commands_and_options_are_the_programs(helm):
    from undersong.cli import app

    _, found = containers(helm, **VARIANTS["all"])
    init = found["init"]["args"]
    words = [shlex.split(init[0])[6:8], ["coordinator", "serve", "--log-json"], found["console"]["args"]]
    assert found["coordinator"]["args"] == words[1]
    words[0] += init[2:]
    for typed in words:
        command = typer.main.get_command(app)
        for word in typed:
            if not word.startswith("--"):
                command = command.commands[word] if hasattr(command, "commands") else command
                continue
            assert any(word.partition("=")[0] in each.opts for each in command.params), word


def test_probes_ask_healthz_and_the_console_under_its_name(helm):
    _, found = containers(helm)
    for name, scheme in (("coordinator", None), ("console", "HTTPS")):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = found[name][probe]["httpGet"]
            assert (asked["path"], asked.get("scheme")) == ("/healthz", scheme)
            assert asked["port"] in {port["name"] for port in found[name]["ports"]}
    assert asked["httpHeaders"] == [{"name": "Host", "value": "console.example.org"}]


def test_nothing_runs_as_root_and_only_the_volume_is_written(helm):
    pod, found = containers(helm, **VARIANTS["all"])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for each in found.values():
        context = each["securityContext"]
        assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
        assert each["image"] == "undersong-coordinator@sha256:" + "0" * 64
        assert each["envFrom"] == [{"secretRef": {"name": "keys"}}]
        assert {"name": "data", "mountPath": "/data"} in each["volumeMounts"]


def test_tls_of_the_parties_passes_through_to_the_coordinator(helm):
    found = rendered(helm, **VARIANTS["all"])
    (port,) = found["Service", "fed"]["spec"]["ports"]
    assert (port["protocol"], port["targetPort"]) == ("TCP", "parties")
    ingress = found["Ingress", "fed"]
    assert ingress["metadata"]["annotations"] == {"nginx.ingress.kubernetes.io/ssl-passthrough": "true"}
    assert "tls" not in ingress["spec"]  # a controller with a certificate would end it
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == [
        "fed.example.org",
        "other.example.org",
        "console.example.org",
    ]


def test_it_is_of_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
