"""Packing: the small files of a step go into its manifest.

A step then waits for one create, and not for the files of every layer and worker before it. Files
of failed attempts never reach the storage at all.

A packed file follows the document of the manifest. It has no name in the store: the reference says
in which manifest it is, and where it begins. Its bytes are those that a file of its own would have.
So a manifest is needed for as long as a file in it is, and no manifest is deleted before an older
one (``Head.oldest_manifest``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from headrace.errors import ensure
from headrace.ledger.manifest import MANIFESTS, Manifest, is_manifest, manifest_name
from headrace.ledger.records import Slice
from headrace.runfiles.format import FileRef

#: The document of a manifest with packed files has a multiple of this length in bytes.
_UNIT = 512
#: Few manifests are longer, except those that carry a base.
_USUAL = 4_096
#: The numbers in a document may get so many bytes longer when they are set.
_SPARE = 256


def pack(manifest: Manifest, contents: Mapping[str, bytes]) -> tuple[Manifest, bytes, bytes]:
    """Return a manifest that has files packed into it, its document, and all of its bytes.

    Args:
        manifest: the manifest, which names the files.
        contents: the bytes of the files to pack, by name.
    """
    if not contents and not _names_packed(manifest):
        document = MANIFESTS.encode(manifest)
        return manifest, document, document
    length = _USUAL
    while True:
        placed = _placed(manifest, contents, length)
        document = MANIFESTS.encode(placed, padded_to=length)
        if len(document) == length:
            return placed, document, b"".join([document, *contents.values()])
        length = -(-(len(document) + _SPARE) // _UNIT) * _UNIT


def end_of_pack(manifest: Manifest) -> int | None:
    """Return the length in bytes of a manifest with files packed into it; None for another one."""
    files = [*manifest.runs, *manifest.outputs, *(manifest.slice.files if manifest.slice else ())]
    name = manifest_name(manifest.step)
    return max((file.offset + file.length for file in files if file.pack == name), default=None)


def _names_packed(manifest: Manifest) -> bool:
    """Return whether a manifest names packed files of earlier steps, which older versions overlook.

    It then has the format that they refuse.
    """
    base = manifest.base
    return base is not None and (
        any(file.pack is not None for file in base.files)
        or any(is_manifest(name) for name, _ in base.dead)
    )


def _placed(manifest: Manifest, contents: Mapping[str, bytes], begin: int) -> Manifest:
    """Return a manifest whose references say where in it their files are."""
    offsets: dict[str, int] = {}
    for name, data in contents.items():
        offsets[name] = begin
        begin += len(data)
    pack_name = manifest_name(manifest.step)

    def placed(file: FileRef) -> FileRef:
        if file.name not in offsets:
            return file
        return msgspec.structs.replace(file, pack=pack_name, offset=offsets[file.name])

    named = {file.name for file in (*manifest.runs, *manifest.outputs)}
    ensure(named >= offsets.keys(), "a file is packed that the manifest does not name")
    return with_files(manifest, placed)


def with_files(manifest: Manifest, change: Callable[[FileRef], FileRef]) -> Manifest:
    """Return a manifest with other references to the files that may be packed."""
    return msgspec.structs.replace(
        manifest,
        runs=[change(file) for file in manifest.runs],
        outputs=[change(file) for file in manifest.outputs],
        slice=manifest.slice and slice_with_files(manifest.slice, change),
    )


def slice_with_files(part: Slice, change: Callable[[FileRef], FileRef]) -> Slice:
    """Return a slice with other references to its files."""
    return msgspec.structs.replace(part, files=[change(file) for file in part.files])


def unpacked(file: FileRef) -> FileRef:
    """Return the reference to a file of its own with the same content."""
    return msgspec.structs.replace(file, pack=None, offset=0)
