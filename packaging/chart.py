"""The Helm chart, and the plain manifests that it renders: `packaging/chart.py` packages both into
target/dist, `packaging/chart.py check WEIR` lints and renders the chart in several ways, validates
each manifest against Kubernetes' schemas, and has the program WEIR check each configuration."""

import pathlib
import subprocess
import sys
import tempfile

import common
import helm_python
import kubernetes_validate
import yaml

CHART = common.ROOT / "packaging" / "helm"
# The oldest version that the chart allows, and the newest whose schemas there are.
KUBERNETES = ["1.27", "1.37"]
# Custom resources: their schemas are not Kubernetes' own.
CUSTOM = {"ServiceMonitor", "HTTPRoute"}
SHAPES = {
    "as it comes": {},
    "everything": {
        "replicas": 3,
        "image": {"repository": "registry.example/weir", "digest": "sha256:" + "0" * 64,
                  "pullSecrets": [{"name": "registry"}]},
        # Neither the first lines nor the names may be taken for something else of YAML.
        "config": "  # The configuration.\n" + yaml.safe_load((CHART / "values.yaml").read_text())["config"],
        "files": {"limit.lua": "  -- {{ not a template }} # \"\nreturn 1\n", "1": "one"},
        "binaryFiles": {"policy.wasm": "AGFzbQEAAAA="},
        "secrets": [{"name": "redis"}, {"name": "tls.example"}],
        "state": {"persistentVolumeClaim": {"claimName": "weir"}},
        "strategy": {"type": "Recreate"},
        "service": {"type": "LoadBalancer", "port": 443, "externalTrafficPolicy": "Local",
                    "annotations": {"example.com/balancer": "internal"}},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}],
                      "hostnames": ["api.example.com"]},
        "serviceAccount": {"annotations": {"example.com/role": "weir"}},
        "podAnnotations": {"example.com/team": "edge"},
        "podLabels": {"team": "edge"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "edge", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "env": [{"name": "TZ", "value": "Europe/Zurich"}],
    },
    "one replica, no account": {
        "replicas": 1, "topologySpread": False, "serviceAccount": {"create": False},
    },
}
# Mistakes, and what the message names.
REFUSED = [
    ({"replica": 3}, "replica"),
    ({"ports": {"http": "8080"}}, "ports"),
    ({"image": {"digest": "0123"}}, "digest"),
    ({"service": {"type": "Loadbalancer"}}, "type"),
    ({"env": [{"value": "Europe/Zurich"}]}, "env"),
    ({"secrets": ["redis"]}, "secrets"),
    ({"files": {"proxy.toml": ""}}, "proxy.toml"),
    ({"files": {"of/a/folder": ""}}, "of/a/folder"),
]


def main():
    match sys.argv[1:]:
        case []:
            package()
        case ["check", program]:
            check(pathlib.Path(program).resolve())
        case _:
            raise SystemExit("usage: chart.py [check WEIR]")


def package():
    version = common.version()
    path = helm_python.package(CHART, destination=common.DIST, version=version, app_version=version)
    print(pathlib.Path(path).name)
    # The chart's name is a part of the labels, as with `helm template weir weir-VERSION.tgz`.
    with helm_python.Chart.load(path) as chart:
        text = manifests(chart, {})
    plain = common.DIST / f"weir-{version}-kubernetes.yaml"
    plain.write_text(f"# Weir {version} for Kubernetes: kubectl apply -f {plain.name}\n{text}")
    print(plain.name)


def manifests(chart, values):
    rendered = chart.render(values, name="weir", namespace="default")
    return "".join(
        f"---\n{text.strip().removeprefix('---').strip()}\n"
        for path, text in sorted(rendered.items())
        if path.endswith(".yaml") and text.strip()
    )


def check(program):
    for name, values in SHAPES.items():
        report = helm_python.lint(CHART, values, strict=True)
        problems = [m for m in report["messages"] if m["severity"] >= 2] + report["errors"]
        if problems:
            raise SystemExit(f"the chart, {name}: {problems}")
        with helm_python.Chart.load(CHART) as chart:
            text = manifests(chart, values)
        kinds = []
        for resource in yaml.safe_load_all(text):
            kinds.append(resource["kind"])
            if resource["kind"] in CUSTOM:
                continue
            for version in KUBERNETES:
                kubernetes_validate.validate(resource, version, strict=True)
            if resource["kind"] == "Deployment":
                volumes(resource["spec"]["template"]["spec"]["volumes"])
            if resource["kind"] == "ConfigMap":
                configuration(program, name, resource["data"]["proxy.toml"])
                arrived(values, resource["data"])
        print(f"{name}: {', '.join(kinds)}")
    for values, named in REFUSED:
        report = helm_python.lint(CHART, values, strict=True)
        said = str(report["messages"]) + str(report["errors"])
        if named not in said:
            raise SystemExit(f"{values} is accepted, or its message does not name it: {said}")
    print(f"{len(REFUSED)} mistakes in values are refused")


def arrived(values, data):
    """Each file has the text that it has in the values."""
    expected = dict(values.get("files", {}))
    if "config" in values:
        expected["proxy.toml"] = values["config"]
    for name, text in expected.items():
        if data[name] != text:
            raise SystemExit(f"the file {name}: found {data[name]!r}, expected {text!r}")


def volumes(listed):
    """The schemas allow a volume of two kinds, and the server refuses it."""
    for volume in listed:
        if len(volume) != 2:
            raise SystemExit(f"a volume of several kinds: {volume}")


def configuration(program, name, text):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "proxy.toml"
        path.write_text(text)
        ran = subprocess.run([program, "check", "--config", path], capture_output=True, text=True)
        if ran.returncode != 0:
            raise SystemExit(f"the configuration of {name}: {ran.stdout}{ran.stderr}")


if __name__ == "__main__":
    main()
