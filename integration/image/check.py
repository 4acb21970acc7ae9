#!/usr/bin/env python3
"""Checks an image that build.py has made: two builds are equal, each architecture is small, and its binary starts.

    check.py --out target/image --binary amd64=… [--binary arm64=…]

Starting takes root (chroot) and, for another architecture than this machine's, qemu-user-static.
"""

import json
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Compressed, per architecture.
LARGEST = 40 * 2**20
NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
EMULATORS = {"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}


def build(out, arguments):
    """Builds into a folder; the digest of the index."""
    subprocess.run([sys.executable, str(HERE / "build.py"), "--out", str(out), *arguments], check=True)
    return json.loads((out / "oci/index.json").read_text())["manifests"][0]["digest"]


def blob(out, digest):
    """A JSON document of the layout."""
    return json.loads((out / "oci/blobs/sha256" / digest.removeprefix("sha256:")).read_text())


def start(rootfs, architecture):
    """What the binary says of its version, with nothing around it but the image's files."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "root"
        shutil.copytree(rootfs, root)
        command = ["/usr/bin/heddle", "--version"]
        if architecture != NATIVE:
            shutil.copy(shutil.which(EMULATORS[architecture]), root / "emulator")
            command.insert(0, "/emulator")
        return subprocess.run(["chroot", str(root), *command], capture_output=True, text=True, check=True).stdout.strip()


def main():
    """Runs all checks; the first that fails ends it."""
    out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
    arguments = [word for word in sys.argv[1:] if word not in ("--out", str(out))]
    digest = build(out, arguments)
    with tempfile.TemporaryDirectory() as folder:
        again = build(pathlib.Path(folder), arguments)
    assert digest == again, f"two builds differ: {digest}, {again}"
    for descriptor in blob(out, digest)["manifests"]:
        architecture = descriptor["platform"]["architecture"]
        size = sum(layer["size"] for layer in blob(out, descriptor["digest"])["layers"])
        assert size <= LARGEST, f"{architecture} has {size} bytes, more than {LARGEST}"
        print(f"{architecture}: {start(out / architecture / 'rootfs', architecture)}")
    print("image: reproducible, small enough, starts")


if __name__ == "__main__":
    main()
