"""Spoils files with names, numbers and sizes of ill will, and seals them well again."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from tests.faults.hostile.left_in_storage import Files

NAMES = [
    "../victim",
    "../../victim",
    "runs/../../victim",
    "../victims/000000000001-e1-t0-l1-w0-a1",
    "/etc/passwd",
    "/",
    "",
    ".",
    "..",
    "runs",
    "runs/",
    "runs//x",
    "runs/.",
    "runs/..",
    "runs/x\0y",
    "runs\\..\\victim",
    "runs/\x1b[31mred",
    "runs/a\nb",
    "x" * 5_000,
    "runs/" + "y" * 300,
    "manifests/000000000000",
    "cleaned",
    "~",
    "runs/💥",
    "=cmd()",
    "s3://other/bucket",
    "soft/00/l0-w0/../../../../victim",
    "outputs/../manifests/000000000000",
]
NUMBERS: list[Any] = [
    -1,
    -2,
    0,
    1,
    2,
    3,
    7,
    255,
    4_096,
    65_535,
    65_536,
    10**6,
    10**9,
    2**31,
    2**32,
    2**53,
    2**53 + 1,
    10**15,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    2**70,
    10**40,
    -(2**31),
    -(2**63),
    -(2**64),
    0.5,
    1e308,
    -1e308,
    True,
    None,
    "1",
    [],
    {},
]
#: What a source makes for itself; its own tests spoil it.
_OF_SOURCES = {"positions", "starts", "start", "end"}
_TRAILER = struct.Struct("<QQ8s")
_HEADER = struct.Struct("<8sQQQQq8s")


def spoilt(files: Files, rng: random.Random) -> tuple[Files, str]:
    """Return files of which something is spoilt, and what."""
    files = dict(files)
    kinds: list[Callable[[Files, random.Random], str]] = [
        _spoil_document,
        _spoil_document,
        _spoil_document,
        _spoil_footer,
        _spoil_block,
        _spoil_name,
    ]
    told = [rng.choice(kinds)(files, rng) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
    return files, "; ".join(told)


# -- documents --------------------------------------------------------------------------------


def sealed(kind: bytes, body: bytes) -> bytes:
    """Return a document with the right seal."""
    digest = blake2b(body, digest_size=16).hexdigest().encode()
    return kind + b" 1 " + digest + b"\n" + body + b"\n"


def opened(data: bytes) -> Any:
    """Return what a document holds."""
    return json.loads(document_of(data).partition(b"\n")[2])


def document_of(data: bytes) -> bytes:
    """Return a document without the files that are packed behind it."""
    _, _, length = data.partition(b"\n")[0].partition(b"/")
    return data[: int(length)] if length else data


def rewritten(data: bytes, value: Any) -> bytes:
    """Return a document that holds something else, with the right seal, and with what is behind it."""
    kind, _, seal = data.partition(b"\n")[0].split(b" ")
    body, rest = _dumped(value), data[len(document_of(data)) :]
    length = seal.partition(b"/")[2]
    if not length:
        return sealed(kind, body)
    before = len(kind) + len(b" 2 /\n") + 32 + len(length)
    body = body.ljust(max(int(length) - before - 1, 0))
    digest = blake2b(body, digest_size=16).hexdigest().encode()
    envelope = b"%s 2 %s/%d\n" % (kind, digest, before + len(body) + 1)
    return envelope + body + b"\n" + rest


def _spoil_document(files: Files, rng: random.Random) -> str:
    documents = [name for name, data in files.items() if data.startswith(b"headrace-")]
    weights = [3 if name.startswith("manifests/") else 1 for name in documents]
    name = rng.choices(documents, weights)[0]
    value = opened(files[name])
    where = _spoil_value(value, rng)
    files[name] = rewritten(files[name], value)
    _chain(files)
    return f"{name}: {where}"


def _manifests(files: Files) -> list[str]:
    return sorted(
        name
        for name, data in files.items()
        if name.startswith("manifests/") and data.startswith(b"headrace-manifest ")
    )


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _spoil_value(value: Any, rng: random.Random) -> str:
    leaves = list(_leaves(value, ()))
    if not leaves:
        return "nothing"
    path = rng.choice(leaves)
    at = value
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = _of_ill_will(at[path[-1]], rng)
    return f"{'.'.join(map(str, path))} = {str(at[path[-1]])[:60]!r}"


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield where values are; containers, too."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        if key in _OF_SOURCES:
            continue
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from _leaves(item, (*path, key))


def _of_ill_will(value: Any, rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return rng.choice([*NUMBERS, *NAMES])
    match value:
        case bool() | None:
            return rng.choice(NUMBERS)
        case int() | float():
            return rng.choice(NUMBERS)
        case str():
            return rng.choice(NAMES)
        case list():
            return rng.choice([[], value[:1], value[::-1], value * rng.choice([2, 1_000]), [value]])
        case dict():
            spoilt_one = dict(value)
            for key in rng.sample(list(value), min(len(value), 1)):
                item = spoilt_one.pop(key)
                spoilt_one[str(rng.choice([*NAMES, *NUMBERS]))] = item
            return spoilt_one
    return None


def _chain(files: Files) -> None:
    """Let each manifest name the one before it by its digest, and bases, too."""
    digest = ""
    for name in _manifests(files):
        value = opened(files[name])
        if isinstance(value, dict) and digest:
            value["predecessor"] = digest
            if isinstance(value.get("base"), dict):
                value["base"]["digest"] = digest
            files[name] = rewritten(files[name], value)
        digest = blake2b(document_of(files[name]), digest_size=16).hexdigest()


def _spoil_name(files: Files, rng: random.Random) -> str:
    """Let files lie under names that are like ours, and are not."""
    name, other = rng.choice(sorted(files)), rng.choice(sorted(files))
    where = rng.choice(
        [
            other,
            "manifests/000000000x",
            "manifests/999999999999999999",
            "manifests/00000000000000",
            "runs/999999999999999999-x",
            "runs/²-x",
            "runs/000000000001-é",
            "intents/000000000000",
            "commands/1",
            "pins/000000000000000000-ü",
            "measurements/zz",
            "soft/x",
            "runs/1-",
            "beats/a-0",
            "probes/x",
            "intents/999999999999999999",
        ]
    )
    files[where] = files[name]
    return f"{where} is {name}"


# -- run files --------------------------------------------------------------------------------


def _spoil_footer(files: Files, rng: random.Random) -> str:
    name = rng.choice(
        sorted(n for n in files if n.partition("/")[0] in ("runs", "outputs", "streams"))
    )
    blocks, footer = _taken_apart(files[name])
    where = _spoil_value(footer, rng)
    try:
        files[name] = _put_together(blocks, footer)
    except OverflowError:
        return "nothing"
    _refer(files, name)
    return f"{name}: footer {where}"


def _spoil_block(files: Files, rng: random.Random) -> str:
    name = rng.choice(
        sorted(n for n in files if n.partition("/")[0] in ("runs", "outputs", "streams"))
    )
    blocks, footer = _taken_apart(files[name])
    sections = [section for section in footer[1] if section[3]]
    if not sections:
        return "nothing"
    section = rng.choice(sections)
    block = rng.choice(section[3])
    schema = pa.ipc.read_schema(pa.py_buffer(section[2]))
    data = blocks[block[0] : block[0] + block[1]]
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    bad, evil_schema, how = evil_batch(batch, rng)
    section[2] = evil_schema.serialize().to_pybytes()
    block[0], block[1], block[2] = len(blocks), len(bad), xxhash.xxh3_64_intdigest(bad)
    if rng.random() < 0.5:
        # (alone in its section, and behind all others, so that blocks follow each other)
        section[3] = [block]
        footer[1] = [other for other in footer[1] if other is not section] + [section]
    files[name] = _put_together(blocks + bad, footer)
    _refer(files, name)
    return f"{name}: block {how}"


def _taken_apart(data: bytes) -> tuple[bytes, Any]:
    length, _, _ = _TRAILER.unpack(data[-_TRAILER.size :])
    end = len(data) - _TRAILER.size
    return data[: end - length], msgspec.msgpack.decode(data[end - length : end])


def _put_together(blocks: bytes, footer: Any) -> bytes:
    encoded = msgspec.msgpack.encode(footer)
    checksum = xxhash.xxh3_64_intdigest(encoded)
    return blocks + encoded + _TRAILER.pack(len(encoded), checksum, b"HRRUN001")


def _refer(files: Files, changed: str) -> None:
    """Let all manifests name a file with its new length and checksum."""
    data = files[changed]
    checksum = f"{_TRAILER.unpack(data[-_TRAILER.size :])[1]:016x}"

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("name") == changed and "checksum" in value:
                value.update(length=len(data), checksum=checksum)
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    for name in _manifests(files):
        value = opened(files[name])
        walk(value)
        files[name] = rewritten(files[name], value)
    _chain(files)


# -- Arrow ------------------------------------------------------------------------------------


def evil_batch(batch: pa.RecordBatch, rng: random.Random) -> tuple[bytes, pa.Schema, str]:
    """Return a batch as a message that lies about itself, its columns, and how."""
    how = rng.choice(["compressed", "offsets", "other", "nulls", "bytes", "short"])
    match how:
        case "compressed":
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            data = bytearray(_written(batch, options))
            at = len(data) // 2
            struct.pack_into("<q", data, at - at % 8, 1 << 40)
            return bytes(data), batch.schema, how
        case "offsets":
            n = batch.num_rows
            ends = struct.pack(f"<{n + 1}i", 0, *([1 << 30] * (n - 1)), 1) if n > 1 else b"\0" * 8
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"x")]
            texts = pa.Array.from_buffers(pa.string(), n, buffers)
            arrays = [texts if column.type == pa.string() else column for column in batch.columns]
            schema = batch.schema
            bad = pa.RecordBatch.from_arrays(arrays, schema=schema)
            try:
                return bad.serialize().to_pybytes(), schema, how
            except (pa.ArrowException, OSError):
                return b"\xff\xff\xff\xff", schema, how
        case "other":
            other = pa.record_batch({"x": pa.array([1, 2, 3])})
            return other.serialize().to_pybytes(), other.schema, how
        case "nulls":
            rows = rng.choice([1 << 20, 1 << 30])
            other = pa.record_batch({"__hash": nulls(rows), "x": nulls(rows)})
            return other.serialize().to_pybytes(), other.schema, how
        case "bytes":
            data = bytearray(batch.serialize().to_pybytes())
            for _ in range(rng.choice([1, 4, 16])):
                data[rng.randrange(len(data))] = rng.randrange(256)
            return bytes(data), batch.schema, how
    return batch.serialize().to_pybytes()[: rng.randrange(64)], batch.schema, "short"


def nulls(rows: int) -> pa.Array:
    """Return many nulls that take no memory."""
    return pa.Array.from_buffers(pa.null(), rows, [None])


def _written(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> bytes:
    """Return the message of a batch, written with some options."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    found: bytes = messages[-1].serialize().to_pybytes()
    return found


# -- batches of an inbox ----------------------------------------------------------------------


def spoilt_inbox(files: Files, rng: random.Random) -> tuple[Files, str]:
    """Return an inbox of which a batch lies, well sealed; or whose files have strange names."""
    files = dict(files)
    name = rng.choice(sorted(n for n in files if n.startswith("from-")))
    magic, flags, rows, size, _, promise, nonce = _HEADER.unpack(files[name][: _HEADER.size])
    body = files[name][_HEADER.size + 8 :]
    how = rng.choice(["rows", "size", "promise", "body", "names", "flags"])
    match how:
        case "rows":
            rows = rng.choice([0, 1, 2, 2**32, 2**53 + 1, 2**63, 2**64 - 1])
        case "size":
            size = rng.choice([0, 1, len(body) - 1, len(body) + 1, 2**31, 2**40, 2**63, 2**64 - 1])
        case "promise":
            promise = rng.choice([-(2**63), 2**63 - 1, 0, 1 << 60])
        case "flags":
            flags = rng.choice([1, 7, 2**64 - 1])
        case "names":
            files[f"producers/{rng.choice(['ann~', 'x' * 100, 'é', '-', 'a b', 'new'])}"] = b""
        case "body":
            body, rows = _evil_stream(rng), rng.choice([0, 1, 3, 1 << 20, 1 << 53])
            size = len(body)
    fields = _HEADER.pack(magic, flags, rows, size, xxhash.xxh3_64_intdigest(body), promise, nonce)
    seal = xxhash.xxh3_64_intdigest(fields + name.encode())
    files[name] = fields + struct.pack("<Q", seal) + body
    return files, f"{name}: {how}, {rows} rows, {size} bytes"


def _evil_stream(rng: random.Random) -> bytes:
    columns: dict[str, Any] = {"n": [1], "text": ["a"], "at": [1]}
    kind = rng.choice(["many", "nulls", "compressed", "bytes", "other", "deep"])
    options = pa.ipc.IpcWriteOptions()
    match kind:
        case "many":
            columns = {name: value * 100_000 for name, value in columns.items()}
        case "nulls":
            columns = dict.fromkeys(columns, nulls(rng.choice([1 << 20, 1 << 30])))
        case "compressed":
            columns = {"n": [0] * 200_000, "text": ["a" * 10] * 200_000, "at": [0] * 200_000}
            options = pa.ipc.IpcWriteOptions(compression="zstd")
        case "other":
            columns = {"n": ["x"], "text": [b"\xff\xfe"], "at": [None]}
        case "deep":
            value: Any = 1
            for _ in range(40):
                value = [value]
            columns = {"n": [value], "text": ["a"], "at": [1]}
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data = bytearray(sink.getvalue().to_pybytes())
    if kind == "bytes":
        for _ in range(rng.choice([1, 4, 16])):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)
