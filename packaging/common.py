"""What each kind of package needs to know: the version, the targets, and how to write archives that
are equal whenever and wherever they are written."""

import dataclasses
import gzip
import hashlib
import io
import os
import pathlib
import subprocess
import tarfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
DIST = TARGET / "dist"

SUMMARY = "A reverse proxy that rate-limits: Wasm policies choose the key, Lua decides, Redis Cluster or memory counts."
LICENSE = "MIT OR Apache-2.0"


@dataclasses.dataclass(frozen=True)
class Target:
    """One of the programs that are released."""

    triple: str
    # As Debian, OCI and Go call the processor; as Python, uname and rustc do; as Node.js does.
    debian: str
    machine: str
    node: str
    # A static program: it needs no C library, and so it is what the packages contain.
    static: bool

    @property
    def program(self):
        return DIST / "bin" / self.triple / "weir"


TARGETS = [
    Target("x86_64-unknown-linux-musl", "amd64", "x86_64", "x64", True),
    Target("aarch64-unknown-linux-musl", "arm64", "aarch64", "arm64", True),
    Target("x86_64-unknown-linux-gnu", "amd64", "x86_64", "x64", False),
]


def built(static_only=False):
    """The targets whose program is there."""
    found = [t for t in TARGETS if t.program.is_file() and (t.static or not static_only)]
    if not found:
        raise SystemExit(f"weir: no program in {DIST / 'bin'}: run packaging/build.sh TARGET first")
    return found


def version():
    with open(ROOT / "Cargo.toml", "rb") as file:
        return tomllib.load(file)["workspace"]["package"]["version"]


def epoch():
    """The time of the commit, in seconds: that of each file in each archive."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    log = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(log, check=True, capture_output=True, text=True).stdout)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tar_gz(path, files):
    """Writes `files`, each a name, a mode and its bytes. Same files, same archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, mode, content in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), mode, epoch()
            entry.uname = entry.gname = "root"
            archive.addfile(entry, io.BytesIO(content))
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(buffer.getvalue())
    print(path.name)
