"""Unpacks the image of this machine's processor from an archive of an OCI layout, and prints the
words that its configuration starts: `unpack_image.py ARCHIVE FOLDER`. Every digest is checked."""

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
            content = layout.extractfile(f"blobs/{algorithm}/{digest}").read()
            assert hashlib.new(algorithm, content).hexdigest() == digest, descriptor
            assert len(content) == descriptor["size"], descriptor
            return content

        # Each image is read, also those for other processors.
        index = json.load(layout.extractfile("index.json"))
        (named,) = index["manifests"]
        images = json.loads(blob(named))["manifests"]
        mine = None
        for image in images:
            manifest = json.loads(blob(image))
            config = json.loads(blob(manifest["config"]))
            assert config["architecture"] == image["platform"]["architecture"], config
            assert config["config"]["User"] == USER, config
            layers = [blob(layer) for layer in manifest["layers"]]
            if image["platform"]["architecture"] == PROCESSORS[platform.machine()]:
                mine = config["config"], layers
        assert mine, f"there is no image for {platform.machine()}"
        config, layers = mine
        for layer in layers:
            extract(layer, folder)
        print(*config["Entrypoint"], *config["Cmd"])


def extract(layer, folder):
    """Without a filter, as before Python 3.11.4, names are not checked: Debian 12 has 3.11.2. The
    archive is one that `image.py` has just written."""
    kept = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        archive.extractall(folder, **kept)


if __name__ == "__main__":
    main()
