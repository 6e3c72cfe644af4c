"""What can be seen of the packages without building the program: `python packaging/check/tests.py`,
with Python 3.11 or later. Small programs take its place."""

import contextlib
import faulthandler
import io
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import common
import homebrew
import npm
import unpack_image
import wheel

WAIT_SECONDS = 20
# All tests together. They take some seconds.
ALL_SECONDS = 300


class Folder(unittest.TestCase):
    """Tests with a folder of their own."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, name, text, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path


class Image(Folder):
    def test_layers_are_unpacked_by_each_python(self):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as layer:
            entry = tarfile.TarInfo("usr/bin/weir")
            entry.size, entry.mode = 4, 0o755
            entry.uid = entry.gid = os.getuid()
            layer.addfile(entry, io.BytesIO(b"weir"))
        layer = self.folder / "layer"
        layer.write_bytes(buffer.getvalue())
        # Debian 12's has no filters.
        words = "import sys, unpack_image as it; it.extract(open(sys.argv[1], 'rb').read(), sys.argv[2])"
        old = "import tarfile; vars(tarfile).pop('tar_filter', None); " + words
        pythons = {sys.executable, "/usr/bin/python3"}
        for number, python in enumerate(p for p in pythons if os.access(p, os.X_OK)):
            for more, script in enumerate([words, old]):
                root = self.folder / f"{number}-{more}"
                run = [python, "-c", script, layer, root]
                subprocess.run(run, check=True, env={"PYTHONPATH": HERE})
                self.assertEqual((root / "usr/bin/weir").read_bytes(), b"weir")
                self.assertEqual((root / "usr/bin/weir").stat().st_mode & 0o777, 0o755)


class Wheel(Folder):
    def test_the_alias_names_the_program_with_its_path(self):
        program = self.folder / "weir"
        shutil.copy("/bin/cat", program)
        alias = self.folder / "weir-proxy"
        alias.write_bytes(wheel.ALIAS)
        run = [sys.executable, alias, "/proc/self/cmdline"]
        words = subprocess.run(run, check=True, capture_output=True).stdout.split(b"\0")
        self.assertEqual(words[:2], [bytes(program), b"/proc/self/cmdline"])


PROGRAM = """#!/bin/sh
trap 'echo handed over; exit 0' USR2
trap 'echo ended; exit 7' TERM
echo ready
while :; do sleep 0.05; done
"""


@unittest.skipUnless(shutil.which("node"), "node is missing")
class Npm(Folder):
    def test_a_parent_stays_as_long_as_its_program(self):
        # As on Node.js before 22.15.
        old = self.write("old.js", "delete process.execve;\n")
        with self.launched(old) as launcher:
            self.assertEqual(launcher.stdout.readline(), "ready\n")
            launcher.send_signal(signal.SIGUSR2)
            self.assertIn("SIGUSR2 is ignored", launcher.stderr.readline())
            self.assertIsNone(launcher.poll())
            launcher.send_signal(signal.SIGTERM)
            self.assertEqual(launcher.communicate()[0], "ended\n")
            self.assertEqual(launcher.returncode, 7)

    def test_a_signal_right_at_the_start_reaches_the_parent(self):
        early = """
            delete process.execve;
            const children = require("node:child_process");
            const { spawn } = children;
            children.spawn = (...words) => {
              const child = spawn(...words);
              process.kill(process.pid, "SIGUSR2");
              return child;
            };
        """
        with self.launched(self.write("early.js", early)) as launcher:
            self.assertIn("SIGUSR2 is ignored", launcher.stderr.readline())
            self.assertEqual(launcher.stdout.readline(), "ready\n")
            launcher.send_signal(signal.SIGTERM)
            self.assertEqual(launcher.communicate()[0], "ended\n")

    @contextlib.contextmanager
    def launched(self, required):
        """The launcher, after a script of its own. It and its program end after WAIT_SECONDS."""
        name = f"weir-proxy-linux-{ {'x86_64': 'x64', 'aarch64': 'arm64'}[platform.machine()]}"
        packages = {name.removeprefix("weir-proxy-"): name}
        self.write("weir.js", npm.START.replace("PACKAGES", json.dumps(packages)))
        self.write(f"node_modules/{name}/bin/weir", PROGRAM, 0o755)
        run = ["node", "--require", required, self.folder / "weir.js"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(run, start_new_session=True, **pipes) as launcher:

            def end():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(launcher.pid, signal.SIGKILL)

            timer = threading.Timer(WAIT_SECONDS, end)
            timer.start()
            try:
                yield launcher
            finally:
                timer.cancel()
                end()


class Homebrew(unittest.TestCase):
    def test_a_build_has_a_toolchain_before_its_target(self):
        build = re.search(r"if OS.mac\?\n(.*?)\n    else", homebrew.FORMULA, re.DOTALL)[1]
        steps = ["rustup\", \"default", "rustup\", \"target", "cargo\", \"install", "packaging/proxy.toml"]
        places = [build.find(step) for step in steps]
        self.assertEqual(places, sorted(places), build)
        self.assertNotIn(-1, places)
        # A folder that is made: `install "file" => "folder/file"` fails without it.
        self.assertIn('(etc/"weir").install "packaging/proxy.toml"', build)

    def test_a_release_says_where_its_files_will_be(self):
        workflow = (common.ROOT / ".github/workflows/release.yml").read_text()
        self.assertIn("WEIR_RELEASE_URL: ", workflow)
        self.assertIn("WEIR_HOMEPAGE: ", workflow)


class Setup(Folder):
    """What scripts/setup.sh looks for, with programs in the place of the system's."""

    def bash(self, script, **more):
        run = ["bash", "-c", f"source scripts/setup.sh\n{script}"]
        path = f"{self.folder}:{os.environ['PATH']}"
        done = subprocess.run(
            run, cwd=common.ROOT, env={**os.environ, "PATH": path, **more}, text=True, capture_output=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split(), done.stderr

    def test_what_apt_does_not_have_is_not_asked_for(self):
        policy = "case $1 in policy) printf 'chromium:\\n  Candidate: %s\\n' \"$FOUND\" ;; esac\n"
        self.write("apt-cache", f"#!/bin/sh\n{policy}", 0o755)
        self.write("apt-get", "#!/bin/sh\n", 0o755)
        script = "has_browser() { return 1; }; missing=(); add_missing interop; printf '%s\\n' \"${missing[@]}\""
        found, _ = self.bash(script, FOUND="(none)")
        self.assertNotIn("chromium", found)
        found, _ = self.bash(script, FOUND="150.0-1")
        self.assertIn("chromium", found)
        # Ubuntu 24.04 knows it as an old package without a version, and others not at all.
        self.write("apt-cache", "#!/bin/sh\nexit 100\n", 0o755)
        found, said = self.bash(script, FOUND="")
        self.assertNotIn("chromium", found)
        self.assertIn("no package of chromium", said)

    def test_releases_need_a_python_that_reads_toml(self):
        asked = self.folder / "asked"
        self.write("python3", f'#!/bin/sh\necho "$3" >> {asked}\n', 0o755)
        found, _ = self.bash("some_python; some_python 11")
        self.assertEqual(found, ["python3", "python3"])
        self.assertEqual(asked.read_text().split(), ["10", "11"])

    def test_releases_need_systemd_analyze(self):
        script = 'install() { printf "%s\\n" "$@"; }; have() { [[ $1 != systemd-analyze ]]; }; packages_for_release'
        self.assertIn("systemd", self.bash(script)[0])


class Deb(Folder):
    def test_a_removal_leaves_no_link_without_systemd(self):
        # In most containers, root may not.
        if subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("mounts of one's own are not allowed")
        link = self.folder / "etc/systemd/system/multi-user.target.wants/weir.service"
        link.parent.mkdir(parents=True)
        link.symlink_to("/usr/lib/systemd/system/weir.service")
        prerm = common.ROOT / "packaging/deb/prerm"
        mounts = f"mount --bind {self.folder}/etc/systemd /etc/systemd && mount -t tmpfs tmpfs /run"
        run = lambda how: subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{mounts} && sh {prerm} {how}"], check=True
        )
        run("upgrade")
        self.assertTrue(link.is_symlink())
        run("remove")
        self.assertFalse(link.is_symlink())


class Archive(Folder):
    def test_another_processor_without_its_glibc_is_not_tried(self):
        archive = self.folder / "weir-0.0.0-other-unknown-linux-gnu.tar.gz"
        with tarfile.open(archive, "w:gz") as written:
            entry = tarfile.TarInfo("weir-0.0.0/weir")
            written.addfile(entry)
        done = subprocess.run([HERE / "archive.sh", archive], text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("needs a glibc for other", done.stdout)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(ALL_SECONDS, exit=True)
    unittest.main()
