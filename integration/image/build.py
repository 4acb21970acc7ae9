#!/usr/bin/env python3
"""Makes Heddle's OCI image out of binaries that are built: an OCI layout, and a tar that `ctr images import` takes.

    build.py --out target/image --binary amd64=target/dist/heddle --binary arm64=target/aarch64-unknown-linux-gnu/dist/heddle

The same input gives the same bytes: entries are sorted and belong to root, and every time is SOURCE_DATE_EPOCH (without
it, that of the last commit). Python's standard library is all it needs.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
import subprocess
import tarfile
import time

import elf

# Where the libraries of an architecture are, on a Debian machine of this or another architecture.
LIBRARIES = {
    "amd64": ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/lib64", "/usr/x86_64-linux-gnu/lib"],
    "arm64": ["/usr/aarch64-linux-gnu/lib", "/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu"],
}
MACHINES = {"amd64": elf.X86_64, "arm64": elf.AARCH64}

# What the driver's libnvidia-ml.so.1, which is opened at run time, is linked to. glibc has it all in libc.so.6 by now, but
# the files must be there.
FOR_THE_DRIVER = ["libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"]

FILES = {
    "etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
}


def found(architecture, name):
    """The file of a library."""
    for folder in LIBRARIES[architecture]:
        path = pathlib.Path(folder, name)
        if path.is_file() and elf.read(path).machine == MACHINES[architecture]:
            return path.resolve()
    raise SystemExit(f"no {name} for {architecture} in {', '.join(LIBRARIES[architecture])}")


def libraries(architecture, binary):
    """The loader and every library that the binary or the driver's need, by their place in the image."""
    head = elf.read(binary)
    if head.machine != MACHINES[architecture]:
        raise SystemExit(f"{binary} is not for {architecture}")
    loader = head.interpreter.lstrip("/")
    placed = {loader: found(architecture, pathlib.Path(loader).name)}
    wanted = list(head.needed) + FOR_THE_DRIVER
    while wanted:
        name = wanted.pop()
        place = f"lib/{name}"
        if name == pathlib.Path(loader).name or place in placed:
            continue
        placed[place] = found(architecture, name)
        wanted += elf.read(placed[place]).needed
    return placed


def rootfs(folder, architecture, binary):
    """Fills a folder with the image's files, and gives its layers: what rarely changes, then the binary."""
    shutil.rmtree(folder, ignore_errors=True)
    below = []
    for place, source in sorted(libraries(architecture, binary).items()):
        copy(source, folder / place, 0o755)
        below.append(place)
    for place, text in FILES.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(0o644)
        below.append(place)
    copy(binary, folder / "usr/bin/heddle", 0o755)
    return [below, ["usr/bin/heddle"]]


def copy(source, target, mode):
    """A file alone, without owner and times."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def layer(folder, places, epoch):
    """A tar of some files and the folders above them."""
    folders = {str(parent) for place in places for parent in pathlib.Path(place).parents} - {"."}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for place in sorted(folders | set(places)):
            entry = tarfile.TarInfo(place)
            entry.mtime = epoch
            if place in folders:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
                continue
            if (folder / place).is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(folder / place)
                tar.addfile(entry)
                continue
            content = (folder / place).read_bytes()
            entry.size, entry.mode = len(content), stat.S_IMODE((folder / place).stat().st_mode)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


class Layout:
    """An OCI layout that is being filled."""

    def __init__(self, folder):
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def blob(self, content, media_type, **more):
        """Adds a blob; its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content), **more}

    def document(self, value, media_type, **more):
        """Adds a JSON document."""
        return self.blob(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), media_type, **more)


def manifest(layout, folder, architecture, layers, labels, epoch):
    """Adds the image of one architecture; its descriptor and its compressed size."""
    descriptors, ids = [], []
    for places in layers:
        content = layer(folder, places, epoch)
        ids.append(f"sha256:{hashlib.sha256(content).hexdigest()}")
        packed = gzip.compress(content, compresslevel=9, mtime=0)
        descriptors.append(layout.blob(packed, "application/vnd.oci.image.layer.v1.tar+gzip"))
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {"Entrypoint": ["/usr/bin/heddle"], "Env": ["PATH=/usr/bin"], "User": "65532:65532", "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": ids},
        "history": [{"created": created, "created_by": what} for what in ("libraries", "heddle")],
    }
    document = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": layout.document(config, "application/vnd.oci.image.config.v1+json"),
        "layers": descriptors,
        "annotations": labels,
    }
    size = sum(descriptor["size"] for descriptor in descriptors) + document["config"]["size"]
    platform = {"architecture": architecture, "os": "linux"}
    return layout.document(document, document["mediaType"], platform=platform), size


def pack(layout, target, epoch):
    """The layout as one tar."""
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(layout.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                entry = tarfile.TarInfo(str(path.relative_to(layout)))
                entry.size, entry.mode, entry.mtime = len(content), 0o644, epoch
                tar.addfile(entry, io.BytesIO(content))


def said(*command):
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main():
    """Builds what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--binary", action="append", required=True, metavar="ARCHITECTURE=FILE")
    parser.add_argument("--name", default="ghcr.io/heddle-dev/heddle")
    parser.add_argument("--tag")
    options = parser.parse_args()
    here = pathlib.Path(__file__).resolve().parent
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or said("git", "-C", str(here), "log", "-1", "--format=%ct"))
    chart = (here.parent.parent / "helm/Chart.yaml").read_text()
    version = next(line.split()[1] for line in chart.splitlines() if line.startswith("appVersion:"))
    labels = {
        "org.opencontainers.image.title": "heddle",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.source": "https://github.com/heddle-dev/heddle",
    }
    layout, manifests = Layout(options.out / "oci"), []
    for architecture, _, binary in sorted(binary.partition("=") for binary in options.binary):
        folder = options.out / architecture / "rootfs"
        layers = rootfs(folder, architecture, pathlib.Path(binary))
        descriptor, size = manifest(layout, folder, architecture, layers, labels, epoch)
        manifests.append(descriptor)
        print(f"{architecture}: {descriptor['digest']}, {size / 2**20:.1f} MiB compressed")
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
        "annotations": labels,
    }
    reference = f"{options.name}:{options.tag or version}"
    names = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
    top = layout.document(index, index["mediaType"], annotations=names)
    root = {"schemaVersion": 2, "mediaType": index["mediaType"], "manifests": [top]}
    (layout.folder / "index.json").write_text(json.dumps(root, sort_keys=True))
    pack(layout.folder, options.out / "heddle.tar", epoch)
    print(f"{reference}: {top['digest']} in {options.out / 'heddle.tar'}")


if __name__ == "__main__":
    main()
