#!/usr/bin/env python3
"""Writes an OCI image of one layer as a tar file that containerd imports.

    oci.py OUT NAME ENTRYPOINT SOURCE=PATH-IN-IMAGE...

A SOURCE of ->TARGET is a link. The same input makes the same bytes.
"""

import hashlib
import json
import os
import pathlib
import platform
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "image"))
import build  # noqa: E402

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def fill(root, files):
    """Puts the files into a folder; their places."""
    places = []
    for file in files:
        source, target = file.split("=", 1)
        places.append(target.lstrip("/"))
        place = root / places[-1]
        if source.startswith("->"):
            place.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(source[2:], place)
        else:
            build.copy(source, place, 0o755)
    return places


def main(out, name, entrypoint, *files):
    """Writes the image."""
    with tempfile.TemporaryDirectory() as scratch:
        root, layout = pathlib.Path(scratch, "root"), build.Layout(pathlib.Path(scratch, "oci"))
        content = build.layer(root, fill(root, files), 0)
        config = {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Entrypoint": [entrypoint], "Env": ["PATH=/usr/bin:/bin", "HEDDLE_FAKE_OS=/run/hardware/os"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": layout.document(config, "application/vnd.oci.image.config.v1+json"),
            "layers": [layout.blob(content, "application/vnd.oci.image.layer.v1.tar")],
        }
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        described = layout.document(manifest, manifest["mediaType"], annotations=names)
        (layout.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}, sort_keys=True))
        build.pack(layout.folder, out, 0)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
