"""The archives: the source, and the program of each target with what one wants beside it."""

import gzip
import subprocess

import common


def main():
    sources()
    for target in common.built():
        folder = f"weir-{common.version()}-{target.triple}"
        files = [(f"{folder}/weir", 0o755, target.program.read_bytes())]
        for name, source in [
            ("proxy.toml", "packaging/proxy.toml"),
            ("README.md", "README.md"),
            ("CHANGELOG.md", "CHANGELOG.md"),
            ("LICENSE-APACHE", "LICENSE-APACHE"),
            ("LICENSE-MIT", "LICENSE-MIT"),
            ("weir.service", "docs/systemd/weir.service"),
            ("weir.socket", "docs/systemd/weir.socket"),
        ]:
            files.append((f"{folder}/{name}", 0o644, (common.ROOT / source).read_bytes()))
        common.tar_gz(common.DIST / f"{folder}.tar.gz", files)


def sources():
    """What is committed: git writes the same archive of the same commit."""
    stem = f"weir-{common.version()}"
    archive = ["git", "-C", str(common.ROOT), "archive", f"--prefix={stem}/", "HEAD"]
    tar = subprocess.run(archive, check=True, capture_output=True).stdout
    path = common.DIST / f"{stem}-src.tar.gz"
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(tar)
    print(path.name)


if __name__ == "__main__":
    main()
