"""The packages of npm: `npm install weir-proxy` puts `weir` on the PATH. One package for each
platform contains the program, and says which platform it is for, so that npm installs only that
one. The small package `weir-proxy` names them all as optional, and starts the one that is there."""

import json

import common


def main():
    version = common.version()
    names = {}
    for target in common.built(static_only=True):
        name = f"weir-proxy-linux-{target.node}"
        names[f"linux-{target.node}"] = name
        package(name, {
            "description": f"The program of weir-proxy for Linux on {target.node}",
            "os": ["linux"],
            "cpu": [target.node],
            "preferUnplugged": True,
        }, [("bin/weir", 0o755, target.program.read_bytes())])
    start = START.replace("PACKAGES", json.dumps(names))
    package("weir-proxy", {
        "description": common.SUMMARY,
        "bin": {"weir": "weir.js", "weir-proxy": "weir.js"},
        "engines": {"node": ">=18"},
        "optionalDependencies": dict.fromkeys(names.values(), version),
    }, [
        ("weir.js", 0o755, start.encode()),
        ("README.md", 0o644, (common.ROOT / "packaging" / "npm.md").read_bytes()),
    ])


def package(name, more, files):
    described = {"name": name, "version": common.version(), "license": common.LICENSE, **more}
    text = json.dumps(described, indent=2) + "\n"
    licenses = [(n, 0o644, (common.ROOT / n).read_bytes()) for n in ["LICENSE-APACHE", "LICENSE-MIT"]]
    files = [("package.json", 0o644, text.encode()), *files, *licenses]
    path = common.DIST / f"{name}-{common.version()}.tgz"
    common.tar_gz(path, [(f"package/{inner}", mode, content) for inner, mode, content in files])


# Becomes the program where Node.js can (`process.execve`, 22.15 and later, none with workers).
# Elsewhere it stays as a parent that hands on signals and the exit code. It can't follow a hand-over:
# it would end with the old process, and whoever supervises it would miss the new one.
START = """#!/usr/bin/env node
"use strict";
const { spawn } = require("node:child_process");

const packages = PACKAGES;
const platform = `${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${packages[platform]}/bin/weir`);
} catch {
  const known = Object.keys(packages).join(", ");
  console.error(
    packages[platform]
      ? `weir-proxy: the package ${packages[platform]} is missing: was it installed with --omit=optional?`
      : `weir-proxy: there is no program for ${platform}: expected one of ${known}`,
  );
  process.exit(1);
}
const words = process.argv.slice(2);
if (typeof process.execve === "function") {
  process.removeAllListeners("warning");
  process.execve(program, [program, ...words], process.env);
}
// Before the program starts: a signal without a handler would end this process and leave the program
// behind. Handlers run after this script, so they find the child.
let child;
for (const signal of ["SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP"]) {
  process.on(signal, () => child.kill(signal));
}
process.on("SIGUSR2", () => {
  console.error(
    `weir-proxy: SIGUSR2 is ignored: a new process can take over with Node.js 22.15 or later, found ${process.version}; restart instead`,
  );
});
child = spawn(program, words, { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`weir-proxy: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  } else {
    process.exit(code);
  }
});
"""


if __name__ == "__main__":
    main()
