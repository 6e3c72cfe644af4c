"""Unpacks the image of this machine's processor from an archive of an OCI layout, and prints what
its configuration starts, a word a line: the environment's variables, `--`, the program, and its
arguments. `unpack_image.py ARCHIVE FOLDER`. Every digest is checked, and what Docker reads."""

import gzip
import hashlib
import io
import json
import platform
import sys
import tarfile

PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
USER = "65532:65532"


def main():
    archive, folder = sys.argv[1:]
    with tarfile.open(archive) as layout:
        def blob(descriptor):
            algorithm, digest = descriptor["digest"].split(":")
            content = layout.extractfile(name(descriptor)).read()
            assert hashlib.new(algorithm, content).hexdigest() == digest, descriptor
            assert len(content) == descriptor["size"], descriptor
            return content

        # Each image is read, also those for other processors.
        index = json.load(layout.extractfile("index.json"))
        (named,) = index["manifests"]
        images = json.loads(blob(named))["manifests"]
        for_docker = {image["Config"]: image for image in json.load(layout.extractfile("manifest.json"))}
        assert len(for_docker) == len(images), for_docker
        mine = None
        for image in images:
            manifest = json.loads(blob(image))
            config = json.loads(blob(manifest["config"]))
            assert config["architecture"] == image["platform"]["architecture"], config
            assert config["config"]["User"] == USER, config
            # The version of the package that the authorities are from.
            assert config["config"]["Labels"]["weir.ca-certificates"], config
            layers = [blob(layer) for layer in manifest["layers"]]
            named = for_docker[name(manifest["config"])]
            assert named["Layers"] == [name(layer) for layer in manifest["layers"]], named
            (tag,) = named["RepoTags"]
            assert tag.endswith("-" + config["architecture"]), named
            # Docker compares them with what it has unpacked.
            digests = [hashlib.sha256(gzip.decompress(layer)).hexdigest() for layer in layers]
            assert config["rootfs"]["diff_ids"] == [f"sha256:{it}" for it in digests], config
            if image["platform"]["architecture"] == PROCESSORS[platform.machine()]:
                mine = config["config"], layers
        assert mine, f"there is no image for {platform.machine()}"
        config, layers = mine
        for layer in layers:
            extract(layer, folder)
        print(*config["Env"], "--", *config["Entrypoint"], *config["Cmd"], sep="\n")


def name(descriptor):
    return "blobs/" + descriptor["digest"].replace(":", "/")


def extract(layer, folder):
    """Without a filter, as before Python 3.11.4, names are not checked: Debian 12 has 3.11.2. The
    archive is one that `image.py` has just written."""
    kept = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        archive.extractall(folder, **kept)


if __name__ == "__main__":
    main()
