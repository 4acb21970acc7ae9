"""Reads of an ELF file what it needs to be loaded (System V ABI, 64 bits, little endian)."""

import dataclasses
import struct

X86_64, AARCH64 = 62, 183

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5


@dataclasses.dataclass
class Head:
    """What the loader is told."""

    machine: int
    interpreter: str
    needed: list


def read(path):
    """The head of a 64-bit ELF file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise SystemExit(f"{path} is no 64-bit little-endian ELF file")
    machine = struct.unpack_from("<H", data, 18)[0]
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQ", data, offset + index * size) for index in range(count)]
    loads = [(address, start, length) for kind, _, start, address, _, length in segments if kind == _PT_LOAD]
    interpreter, needed = "", []
    for kind, _, start, _, _, length in segments:
        if kind == _PT_INTERP:
            interpreter = text(data, start)
        if kind == _PT_DYNAMIC:
            entries = list(struct.iter_unpack("<QQ", data[start : start + length]))
            ends = [index for index, (tag, _) in enumerate(entries) if tag == _DT_NULL]
            entries = entries[: ends[0]] if ends else entries
            (table,) = [place(loads, value) for tag, value in entries if tag == _DT_STRTAB]
            needed = [text(data, table + value) for tag, value in entries if tag == _DT_NEEDED]
    return Head(machine, interpreter, needed)


def place(loads, address):
    """Where in the file an address of the loaded image is."""
    for begin, start, length in loads:
        if begin <= address < begin + length:
            return address - begin + start
    raise SystemExit(f"no segment has the address {address:#x}")


def text(data, start):
    """A string that ends with a zero."""
    return data[start : data.index(b"\0", start)].decode()
