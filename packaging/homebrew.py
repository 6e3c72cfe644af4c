"""The formula for Homebrew, with the digests of what was built: `weir.rb`. Homebrew on Linux takes
the static programs; on macOS it builds from the source. WEIR_RELEASE_URL says where the files of the
release will be, and WEIR_HOMEPAGE where the project is."""

import os

import common

PLACE = "https://releases.example/weir"

FORMULA = """class Weir < Formula
  desc "Reverse proxy that rate-limits, and counts exactly"
  homepage "HOMEPAGE"
  version "VERSION"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    url "PLACE/weir-VERSION-src.tar.gz"
    sha256 "SOURCE"
    depends_on "rustup" => :build
  end

  on_linux do
    on_intel do
      url "PLACE/weir-VERSION-x86_64-unknown-linux-musl.tar.gz"
      sha256 "INTEL"
    end
    on_arm do
      url "PLACE/weir-VERSION-aarch64-unknown-linux-musl.tar.gz"
      sha256 "ARM"
    end
  end

  def install
    if OS.mac?
      # The build has a home of its own, without a toolchain.
      system "rustup", "set", "profile", "minimal"
      system "rustup", "default", "stable"
      system "rustup", "target", "add", "wasm32-unknown-unknown"
      system "cargo", "install", *std_cargo_args
      (etc/"weir").install "packaging/proxy.toml"
    else
      bin.install "weir"
      (etc/"weir").install "proxy.toml"
    end
  end

  service do
    run [opt_bin/"weir", "run", "--config", etc/"weir/proxy.toml"]
    keep_alive true
  end

  test do
    system bin/"weir", "check", "--config", etc/"weir/proxy.toml"
  end
end
"""


def main():
    version, place = common.version(), os.environ.get("WEIR_RELEASE_URL", PLACE)
    digests = {
        "SOURCE": f"weir-{version}-src.tar.gz",
        "INTEL": f"weir-{version}-x86_64-unknown-linux-musl.tar.gz",
        "ARM": f"weir-{version}-aarch64-unknown-linux-musl.tar.gz",
    }
    homepage = os.environ.get("WEIR_HOMEPAGE", place)
    text = FORMULA.replace("HOMEPAGE", homepage).replace("PLACE", place).replace("VERSION", version)
    for word, name in digests.items():
        path = common.DIST / name
        if not path.is_file():
            print(f"weir.rb: left out, because {name} was not built")
            return
        text = text.replace(word, common.sha256(path))
    (common.DIST / "weir.rb").write_text(text)
    print("weir.rb")


if __name__ == "__main__":
    main()
