"""The Helm chart, and the plain manifests that it renders: `packaging/chart.py` packages both into
target/dist, `packaging/chart.py check WEIR` lints and renders the chart in several ways, validates
each manifest against Kubernetes' schemas, and has the program WEIR check each configuration.

WEIR_IMAGE is where the image will be, for the plain manifests, as in registry.example/weir."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

import common
import helm_python
import kubernetes_validate
import yaml

CHART = common.ROOT / "packaging" / "helm"
# The oldest version that the chart allows, and the newest whose schemas there are.
KUBERNETES = ["1.27", "1.37"]
# Custom resources: their schemas are not Kubernetes' own.
CUSTOM = {"ServiceMonitor", "HTTPRoute"}
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
LONG = "a" * 60 + ".example.com"
SHAPES = {
    "as it comes": {},
    "everything": {
        "replicas": 3,
        "image": {"repository": "registry.example/weir", "digest": "sha256:" + "0" * 64,
                  "pullSecrets": [{"name": "registry"}]},
        # Neither the first lines nor the names may be taken for something else of YAML.
        "config": "  # The configuration.\n" + DEFAULTS["config"],
        "files": {"limit.lua": "  -- {{ not a template }} # \"\nreturn 1\n", "1": "one"},
        "binaryFiles": {"policy.wasm": "AGFzbQEAAAA="},
        "secrets": [{"name": name} for name in ["redis", "tls.example", "tls-example", "123", LONG]],
        "state": {"persistentVolumeClaim": {"claimName": "weir"}},
        "strategy": {"type": "Recreate"},
        "service": {"type": "LoadBalancer", "port": 80, "externalTrafficPolicy": "Local",
                    "annotations": {"example.com/balancer": "internal"},
                    "nodePort": 30080, "loadBalancerClass": "example.com/internal",
                    "extraPorts": [
                        {"name": "https", "port": 443, "targetPort": 8443, "nodePort": 30443},
                        {"name": "on", "port": 8444, "targetPort": 8444},
                    ]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"},
                           "authorization": {"name": "weir-admin", "key": "token"}},
        "enabled": True,
        "cache": {"sizeLimit": "32Mi"},
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
    ({"secrets": [{"name": "redis"}, {"name": "redis"}]}, "secrets"),
    ({"secrets": [{"name": "A b"}]}, "secrets"),
    ({"enabled": "yes"}, "enabled"),
    ({"serviceMonitor": {"authorization": {"name": "weir-admin"}}}, "key"),
    # Kubernetes wants a letter in it.
    ({"service": {"extraPorts": [{"name": "81", "port": 81, "targetPort": 81}]}}, "extraPorts"),
    ({"service": {"extraPorts": [{"name": "http", "port": 81, "targetPort": 81}]}}, "extraPorts"),
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
        text = plain(chart, version, os.environ.get("WEIR_IMAGE") or None)
    file = common.DIST / f"weir-{version}-kubernetes.yaml"
    file.write_text(text)
    print(file.name)


def plain(chart, version, image):
    """The manifests as a file of their own, which begins with what is to be set in it."""
    head = [
        f"Weir {version} for Kubernetes. Before `kubectl apply`, set",
        "- upstreams, routes and limits, in proxy.toml;",
        "- the namespace in admin.hosts, if it is not `default`.",
    ]
    if image is None:
        asked = f"- where you have pushed the image to, instead of weir:{version} (`image:`);"
        head.insert(1, asked)
    text = manifests(chart, {"image": {"repository": image}} if image else {})
    return "".join(f"# {line}\n" for line in head) + text


def manifests(chart, values, name="weir", namespace="default"):
    rendered = chart.render(values, name=name, namespace=namespace)
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
        # Names that are numbers, too.
        release = {"name": "1", "namespace": "2"} if values else {}
        with helm_python.Chart.load(CHART) as chart:
            text = manifests(chart, values, **release)
        kinds = []
        for resource in yaml.safe_load_all(text):
            kinds.append(resource["kind"])
            if resource["kind"] == "ServiceMonitor":
                monitored(values, resource)
            if resource["kind"] in CUSTOM:
                continue
            for version in KUBERNETES:
                kubernetes_validate.validate(resource, version, strict=True)
            if resource["kind"] == "Deployment":
                pod = resource["spec"]["template"]["spec"]
                volumes(values, pod)
                if not values:
                    memory(pod, DEFAULTS["config"])
            if resource["kind"] == "Service" and not resource["metadata"]["name"].endswith("-admin"):
                ports(values, resource["spec"])
            if resource["kind"] == "ConfigMap":
                configuration(program, name, resource["data"]["proxy.toml"])
                host = "1-weir-admin.2.svc" if values else "weir-admin.default.svc"
                arrived(values, resource["data"], host)
        print(f"{name}: {', '.join(kinds)}")
    with helm_python.Chart.load(CHART) as chart:
        for image in [None, "registry.example/weir"]:
            text = plain(chart, "0.0.0", image)
            (pod,) = [it for it in yaml.safe_load_all(text) if it["kind"] == "Deployment"]
            (container,) = pod["spec"]["template"]["spec"]["containers"]
            expect("the image", container["image"], f"{image or 'weir'}:0.0.0")
            expect("a word about it", "you have pushed the image to" in text, image is None)
    for values, named in REFUSED:
        report = helm_python.lint(CHART, values, strict=True)
        said = str(report["messages"]) + str(report["errors"])
        if named not in said:
            raise SystemExit(f"{values} is accepted, or its message does not name it: {said}")
    print(f"{len(REFUSED)} mistakes in values are refused")


def expect(what, found, expected):
    if found != expected:
        raise SystemExit(f"the chart: {what}: found {found!r}, expected {expected!r}")


def arrived(values, data, host):
    """Each file has the text that it has in the values, with the names of the Service."""
    expected = dict(values.get("files", {}))
    if "config" in values:
        service, namespace = host.split(".")[:2]
        config = values["config"].replace("@ADMIN_SERVICE@", service)
        expected["proxy.toml"] = config.replace("@NAMESPACE@", namespace)
    for name, text in expected.items():
        expect(f"the file {name}", data[name], text)
    hosts = tomllib.loads(data["proxy.toml"])["admin"]["hosts"]
    service = host.split(".")[0]
    expect("admin.hosts", hosts, [service, host.removesuffix(".svc"), host, f"{host}.cluster.local"])


def volumes(values, pod):
    """The schemas allow a volume of two kinds and any name, and the server refuses them."""
    for volume in pod["volumes"]:
        if len(volume) != 2:
            raise SystemExit(f"a volume of several kinds: {volume}")
        if not re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", volume["name"]):
            raise SystemExit(f"a volume's name: {volume}")
    named = {volume["name"]: volume for volume in pod["volumes"]}
    expect("volumes of different names", len(named), len(pod["volumes"]))
    (container,) = pod["containers"]
    mounted = {mount["mountPath"]: named[mount["name"]] for mount in container["volumeMounts"]}
    for secret in values.get("secrets", []):
        volume = mounted[f"/etc/weir-secrets/{secret['name']}"]
        expect("a volume's Secret", volume["secret"]["secretName"], secret["name"])
    # The cache is a folder that Weir makes in one with the sticky bit: on disk it has none.
    expect("the cache's medium", mounted["/var/cache/weir"]["emptyDir"]["medium"], "Memory")
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    expect("CACHE_DIRECTORY", variables.pop("CACHE_DIRECTORY"), "/var/cache/weir/compiled")
    expect("other variables", variables, {it["name"]: it["value"] for it in values.get("env", [])})


# Of a process without traffic, with its policies.
REST_MIB = 64
KEY_BYTES = 111


def memory(pod, config):
    """What the configuration may take is within the container's limit."""
    config = tomllib.loads(config)
    mib = lambda text: int(re.fullmatch("([0-9]+)Mi(B?)", text)[1])
    (cache,) = [it["emptyDir"]["sizeLimit"] for it in pod["volumes"] if it["name"] == "cache"]
    if mib(config["server"]["cache_bytes"]) >= mib(cache):
        raise SystemExit(f"the chart: cache_bytes is not less than the volume's {cache}")
    keys = config["store"]["embedded"]["max_keys"] * KEY_BYTES >> 20
    most = REST_MIB + keys + mib(config["server"]["limits"]["buffered_bytes"]) + mib(cache)
    limit = mib(pod["containers"][0]["resources"]["limits"]["memory"])
    if most > limit:
        raise SystemExit(f"the chart: its configuration may take {most} MiB of {limit}")


def monitored(values, monitor):
    (endpoint,) = monitor["spec"]["endpoints"]
    expected = {"type": "Bearer", "credentials": values["serviceMonitor"]["authorization"]}
    expect("the monitor's authorization", endpoint["authorization"], expected)


def ports(values, service):
    asked = values.get("service", {})
    expect("loadBalancerClass", service.get("loadBalancerClass"), asked.get("loadBalancerClass"))
    first, *more = service["ports"]
    expect("nodePort", first.get("nodePort"), asked.get("nodePort"))
    expected = [{**port, "targetPort": port["name"]} for port in asked.get("extraPorts", [])]
    expect("the Service's other ports", more, expected)


def configuration(program, name, text):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "proxy.toml"
        path.write_text(text)
        ran = subprocess.run([program, "check", "--config", path], capture_output=True, text=True)
        if ran.returncode != 0:
            raise SystemExit(f"the configuration of {name}: {ran.stdout}{ran.stderr}")


if __name__ == "__main__":
    main()
