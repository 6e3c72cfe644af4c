"""The image, as an OCI layout for both processors in one archive:

    podman load -i weir-VERSION-oci.tar        skopeo copy oci-archive:weir-VERSION-oci.tar docker://...

Docker's own store does not read such layouts: for it the archive has a `manifest.json`, too, which
names an image for each processor.

It contains the program, a configuration, the authorities that sign certificates, and a user. There
is no shell: `weir health` is its health check. umoci makes the layers and what describes them."""

import datetime
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import pathlib

import common

# Debian's package, and where the authorities are in it.
AUTHORITIES = "ca-certificates"
AUTHORITIES_FOLDER = "usr/share/ca-certificates/mozilla"
USER = 65532
# The media types of the specification of images, 1.1.
INDEX = "application/vnd.oci.image.index.v1+json"


def main():
    # Whoever builds this, the user in the image reads it.
    os.umask(0o022)
    work = pathlib.Path(tempfile.mkdtemp())
    try:
        layout = work / "layout"
        umoci("init", "--layout", layout)
        targets = common.built(static_only=True)
        trusted = authorities(work)
        for target in targets:
            image(work, layout, target, trusted)
        umoci("gc", "--layout", layout)
        named = join(layout, [target.debian for target in targets])
        for_docker(layout, named)
        write(layout)
    finally:
        shutil.rmtree(work)


def umoci(*words):
    subprocess.run(["umoci", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def created():
    time = datetime.datetime.fromtimestamp(common.epoch(), datetime.timezone.utc)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def authorities(work):
    """The certificates of Debian's package, as `update-ca-certificates` puts them together, and the
    package's version. Those that this machine trusts may be more, or fewer."""
    folder = work / AUTHORITIES
    folder.mkdir()
    download = ["apt-get", "--quiet", "download", AUTHORITIES]
    subprocess.run(download, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    show = ["dpkg-deb", "--field", package, "Version"]
    version = subprocess.run(show, check=True, capture_output=True, text=True).stdout.strip()
    files = sorted((folder / AUTHORITIES_FOLDER).glob("*.crt"))
    if not files:
        raise SystemExit(f"weir: no certificates in {AUTHORITIES_FOLDER} of {package.name}")
    return b"".join(file.read_bytes().rstrip(b"\n") + b"\n" for file in files), version


def image(work, layout, target, trusted):
    """Adds the image of one processor to the layout, under the processor's name."""
    name = f"{layout}:{target.debian}"
    umoci("new", "--image", name)
    bundle = work / target.debian
    umoci("unpack", "--image", name, bundle)
    root = bundle / "rootfs"
    files = {
        "usr/bin/weir": (0o755, target.program.read_bytes()),
        "etc/weir/proxy.toml": (0o644, (common.ROOT / "packaging/proxy.toml").read_bytes()),
        "etc/ssl/certs/ca-certificates.crt": (0o644, trusted[0]),
        "etc/passwd": (0o644, f"weir:x:{USER}:{USER}::/var/lib/weir:/sbin/nologin\n".encode()),
        "etc/group": (0o644, f"weir:x:{USER}:\n".encode()),
    }
    for path, (mode, content) in files.items():
        path = root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    for path in ["var/lib/weir", "var/cache/weir"]:
        (root / path).mkdir(parents=True)
        os.chown(root / path, USER, USER)
        (root / path).chmod(0o700)
    for path in [*sorted(root.rglob("*"), reverse=True), root]:
        os.utime(path, (common.epoch(), common.epoch()))
    made = ["--history.created", created()]
    umoci("repack", *made, "--image", name, bundle)
    umoci(
        "config", *made, "--image", name, "--created", created(),
        "--os", "linux", "--architecture", target.debian,
        "--config.user", f"{USER}:{USER}", "--config.workingdir", "/etc/weir",
        "--config.entrypoint", "/usr/bin/weir",
        "--config.cmd", "run", "--config.cmd=--config", "--config.cmd", "/etc/weir/proxy.toml",
        "--config.env", "PATH=/usr/bin", "--config.env", "CACHE_DIRECTORY=/var/cache/weir",
        "--config.stopsignal", "SIGTERM",
        "--config.exposedports", "8080/tcp", "--config.exposedports", "9901/tcp",
        "--config.label", "org.opencontainers.image.title=weir",
        "--config.label", f"org.opencontainers.image.description={common.SUMMARY}",
        "--config.label", f"org.opencontainers.image.version={common.version()}",
        "--config.label", f"org.opencontainers.image.licenses={common.LICENSE}",
        "--config.label", f"weir.ca-certificates={trusted[1]}",
    )


def join(layout, processors):
    """One index of all processors, as a registry has it, instead of a name for each. Returns the
    manifest of each processor."""
    path = layout / "index.json"
    index = json.loads(path.read_text())
    named = {m["annotations"]["org.opencontainers.image.ref.name"]: m for m in index["manifests"]}
    platforms = []
    for processor in processors:
        manifest = {k: v for k, v in named[processor].items() if k != "annotations"}
        platforms.append({**manifest, "platform": {"os": "linux", "architecture": processor}})
    content = {"schemaVersion": 2, "mediaType": INDEX, "manifests": platforms}
    blob = json.dumps(content, sort_keys=True).encode()
    digest = hashlib.sha256(blob).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(blob)
    index["manifests"] = [{
        "mediaType": INDEX,
        "digest": f"sha256:{digest}",
        "size": len(blob),
        # The name that podman, and the one that Docker gives it.
        "annotations": {
            "org.opencontainers.image.ref.name": f"weir:{common.version()}",
            "io.containerd.image.name": f"docker.io/library/weir:{common.version()}",
        },
    }]
    path.write_text(json.dumps(index, sort_keys=True))
    return {processor: named[processor] for processor in processors}


def blob(descriptor):
    """The name of a blob in the layout."""
    return "blobs/" + descriptor["digest"].replace(":", "/")


def for_docker(layout, named):
    """What Docker's own store reads: it knows no index, so each processor has a name."""
    images = []
    for processor, descriptor in named.items():
        manifest = json.loads((layout / blob(descriptor)).read_text())
        images.append({
            "Config": blob(manifest["config"]),
            "RepoTags": [f"weir:{common.version()}-{processor}"],
            "Layers": [blob(layer) for layer in manifest["layers"]],
        })
    (layout / "manifest.json").write_text(json.dumps(images, sort_keys=True))


def write(layout):
    """The layout as an archive."""
    path = common.DIST / f"weir-{common.version()}-oci.tar"
    with tarfile.open(path, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in sorted(layout.rglob("*")):
            if file.is_file():
                content = file.read_bytes()
                entry = tarfile.TarInfo(str(file.relative_to(layout)))
                entry.size, entry.mode, entry.mtime = len(content), 0o644, common.epoch()
                archive.addfile(entry, io.BytesIO(content))
    print(path.name)


if __name__ == "__main__":
    main()
