#!/usr/bin/env python3
"""Writes an OCI image of one layer as a tar file that containerd imports.

    oci.py OUT NAME ENTRYPOINT SOURCE=PATH-IN-IMAGE...

The same input makes the same bytes.
"""

import hashlib
import io
import json
import platform
import sys
import tarfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def entry(name, content, mode):
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    return info, io.BytesIO(content)


def layer(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        folders = set()
        for source, target in sorted(files, key=lambda file: file[1]):
            target = target.lstrip("/")
            parts = target.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                folder = "/".join(parts[:depth])
                if folder not in folders:
                    folders.add(folder)
                    info = tarfile.TarInfo(folder)
                    info.type, info.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(info)
            if source.startswith("->"):
                info = tarfile.TarInfo(target)
                info.type, info.linkname = tarfile.SYMTYPE, source[2:]
                tar.addfile(info)
                continue
            with open(source, "rb") as file:
                tar.addfile(*entry(target, file.read(), 0o755))
    return out.getvalue()


def main(out, name, entrypoint, *files):
    blobs = {}

    def blob(content, media_type):
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def document(value, media_type):
        return blob(json.dumps(value, sort_keys=True).encode(), media_type)

    content = blob(layer([tuple(file.split("=", 1)) for file in files]), "application/vnd.oci.image.layer.v1.tar")
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": [entrypoint], "Env": ["PATH=/usr/bin:/bin", "HEDDLE_FAKE_OS=/run/hardware/os"]},
        "rootfs": {"type": "layers", "diff_ids": [content["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": document(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [content],
    }
    described = document(manifest, manifest["mediaType"])
    described["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "manifests": [described]}
    with tarfile.open(out, "w") as tar:
        tar.addfile(*entry("oci-layout", b'{"imageLayoutVersion":"1.0.0"}', 0o644))
        tar.addfile(*entry("index.json", json.dumps(index, sort_keys=True).encode(), 0o644))
        for digest, bytes_ in blobs.items():
            tar.addfile(*entry(f"blobs/sha256/{digest}", bytes_, 0o644))


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
