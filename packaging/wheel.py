"""The wheels of `weir-proxy`: `pip install weir-proxy` puts the program on the PATH, and
`uvx weir-proxy` runs it. A wheel is a zip archive (PEP 427), and these contain no Python.

maturin would build the program again with flags of its own. Here it is the program of the other
packages, byte for byte."""

import base64
import hashlib
import time
import zipfile

import common

# A static program needs no C library, so it keeps what either kind of tag promises (PEP 600, 656).
TAGS = "manylinux_2_17_{0}.manylinux2014_{0}.musllinux_1_1_{0}"


def main():
    for target in common.built(static_only=True):
        wheel(target)


def wheel(target):
    tags = TAGS.format(target.machine)
    stem = f"weir_proxy-{common.version()}"
    described = f"{stem}.dist-info"
    files = [
        (f"{stem}.data/scripts/weir", 0o755, target.program.read_bytes()),
        # `uvx weir-proxy` and `pipx run weir-proxy` look for a program of the package's name.
        (f"{stem}.data/scripts/weir-proxy", 0o755, ALIAS),
        (f"{described}/METADATA", 0o644, metadata().encode()),
        (f"{described}/WHEEL", 0o644, kind(tags).encode()),
    ]
    for name in ["LICENSE-APACHE", "LICENSE-MIT"]:
        text = (common.ROOT / name).read_bytes()
        files.append((f"{described}/licenses/{name}", 0o644, text))
    record = f"{described}/RECORD"
    lines = [f"{name},sha256={digest(content)},{len(content)}\n" for name, _, content in files]
    files.append((record, 0o644, ("".join(lines) + f"{record},,\n").encode()))
    path = common.DIST / f"{stem}-py3-none-{tags}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, mode, content in files:
            entry = zipfile.ZipInfo(name, time.gmtime(common.epoch())[:6])
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    print(path.name)


# A second copy would double the size.
ALIAS = b"""#!python
import os, sys, sysconfig
program = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "weir")
if not os.path.exists(program):
    program = os.path.join(sysconfig.get_path("scripts"), "weir")
# With its path, by which a hand-over starts it again.
os.execv(program, [program, *sys.argv[1:]])
"""


def metadata():
    readme = (common.ROOT / "packaging" / "pypi.md").read_text()
    return f"""Metadata-Version: 2.4
Name: weir-proxy
Version: {common.version()}
Summary: {common.SUMMARY}
License-Expression: {common.LICENSE}
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Keywords: rate-limit,reverse-proxy,redis,wasm
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Rust
Classifier: Topic :: Internet :: Proxy Servers
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{readme}"""


def kind(tags):
    lines = [f"Tag: py3-none-{tag}\n" for tag in tags.split(".")]
    return "Wheel-Version: 1.0\nGenerator: weir\nRoot-Is-Purelib: false\n" + "".join(lines)


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main()
