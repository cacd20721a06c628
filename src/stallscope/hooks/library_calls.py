"""The library calls that matter in a data pipeline, and the stage that each of them is.

Three sorts. Reading and decoding are stages of their own wherever they happen, because they
happen in surprising places: `PIL.Image.open` is lazy, so the first transform that touches the
pixels decodes them. A transforming call (`cv2.resize`) is a stage only in the dataset's own code;
inside a transform that has a name it belongs to that transform (see `hooks/hot_path.py`).

What is read through an open file object (`file.read()`) cannot be hooked without changing the
object's type; it stays in `getitem`, as waiting.
"""

from __future__ import annotations

import builtins
import os
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stallscope.stages import DECODE, FETCH, Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stallscope.hooks.hot_path import Recorder
    from stallscope.hooks.patches import Patches


_READS_AND_DECODES: Final = {
    name: f"{name} reads and decodes in one call: its reading is part of 'decode'"
    for name in ("cv2.imread", "tifffile.imread")
}
"""What a run says, by the call in `CALLS`: such a call cannot be divided."""


class LibraryCall(NamedTuple):
    """A library's function or method."""

    module: str
    """Module that must have been imported; until then there is nothing to hook."""
    path: str
    """Name in the module, `Class.method` for a method."""
    stage: Stage
    """What the call is."""
    gives: str = ""
    """What passes through that the run wants to know: 'file' or 'image'."""


def _transforming(prefix: str, module: str, names: str) -> list[LibraryCall]:
    return [
        LibraryCall(
            module, name, Stage(f"{prefix}.{name.rpartition('.')[2]}", "transform", gives_way=True)
        )
        for name in names.split()
    ]


CALLS: Final = (
    LibraryCall("builtins", "open", FETCH, "file"),
    LibraryCall("pathlib", "Path.read_bytes", FETCH, "file"),
    LibraryCall("pathlib", "Path.read_text", FETCH, "file"),
    LibraryCall("PIL.Image", "open", FETCH, "image"),
    LibraryCall("PIL.JpegImagePlugin", "JpegImageFile.load_read", FETCH),
    LibraryCall("PIL.PngImagePlugin", "PngImageFile.load_read", FETCH),
    LibraryCall("torch.ops.image", "read_file", FETCH, "file"),
    LibraryCall("numpy", "load", FETCH, "file"),
    LibraryCall("numpy", "fromfile", FETCH, "file"),
    LibraryCall("h5py", "Dataset.__getitem__", FETCH),
    LibraryCall("zipfile", "ZipFile.read", FETCH),
    LibraryCall("torch.ops.image", "decode_image", DECODE),
    LibraryCall("torch.ops.image", "decode_jpeg", DECODE),
    LibraryCall("torch.ops.image", "decode_png", DECODE),
    LibraryCall("torch.ops.image", "decode_webp", DECODE),
    LibraryCall("torch.ops.image", "decode_gif", DECODE),
    LibraryCall("cv2", "imdecode", DECODE),
    LibraryCall("cv2", "imread", DECODE, "file"),
    LibraryCall("tifffile", "imread", DECODE, "file"),
    *_transforming(
        "PIL",
        "PIL.Image",
        "Image.convert Image.crop Image.resize Image.rotate Image.thumbnail Image.transpose",
    ),
    *_transforming(
        "torchvision",
        "torchvision.transforms.functional",
        "center_crop crop hflip normalize pil_to_tensor resize resized_crop to_tensor",
    ),
    *_transforming("cv2", "cv2", "cvtColor flip GaussianBlur resize warpAffine warpPerspective"),
)


class Libraries:
    """Hooks the calls of every library that has been imported, and looks again for late ones."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self._recorder = recorder
        self._patches = patches
        self._waiting = list(CALLS)
        self._modules_seen = 0
        self._decoders: set[type] = set()

    def hook(self) -> None:
        """Hook what is there by now; costs nothing when nothing has been imported since."""
        if len(sys.modules) == self._modules_seen:
            return
        functions: dict[int, tuple[Any, Any]] = {}
        self._waiting = [call for call in self._waiting if not self._hook_call(call, functions)]
        if functions:
            self._patches.put_everywhere(functions)
        self._hook_decoders()
        self._modules_seen = len(sys.modules)

    def _hook_call(self, call: LibraryCall, functions: dict[int, tuple[Any, Any]]) -> bool:
        """Hook a method at once, a function by adding it to `functions`; False: not imported."""
        module = _module(call.module)
        if module is None:
            return False
        owner_name, _, name = call.path.rpartition(".")
        owner = getattr(module, owner_name, None) if owner_name else module
        original = getattr(owner, name, None)
        if owner is None or original is None:
            return True  # this version of the library has no such call
        hook = self._recorder.call(original, self._recorder.key(call.stage), self._looker(call))
        if owner_name or call.module in ("builtins", "torch.ops.image"):
            self._patches.put(owner, name, hook)
        else:
            functions[id(original)] = (original, hook)
        return True

    def _looker(self, call: LibraryCall) -> Callable[..., None] | None:
        """What to do with the result and the arguments of a call."""
        recorder = self._recorder
        record_file, record_pixels = recorder.file, recorder.pixels
        note = _READS_AND_DECODES.get(f"{call.module}.{call.path}")

        def file(_: object, path: object = None, *__: object) -> None:
            nonlocal note
            if note:
                recorder.note(note)
                note = None
            if type(path) is str:  # nearly always: the other question takes a microsecond
                record_file(path)
            elif hasattr(path, "__fspath__"):
                record_file(os.fsdecode(path))

        def image(result: Any, source: object = None, *_: object) -> None:
            file(result, source)
            width, height = result.size
            record_pixels(width, height)

        return {"file": file, "image": image}.get(call.gives)

    def _hook_decoders(self) -> None:
        """`load` of PIL's image files, where the pixels come into being."""
        image_file = _module("PIL.ImageFile")
        if image_file is None:
            return
        for cls in [image_file.ImageFile, *_subclasses(image_file.ImageFile)]:
            if "load" in vars(cls) and cls not in self._decoders:
                self._decoders.add(cls)
                self._patches.put(cls, "load", self._decoder(cls, image_file.ImageFile))

    def _decoder(self, cls: type, base: type) -> Callable[..., Any]:
        original = vars(cls)["load"]
        timed = self._recorder.call(original, self._recorder.key(DECODE))
        if cls is not base:  # WebP, TIFF, ...: they decode before they make their tiles
            return timed

        def load(self: Any) -> Any:
            # Every operation calls `load`; there is work only while tiles are left.
            return timed(self) if self.tile else original(self)

        return load


def _module(name: str) -> ModuleType | None:
    if name == "builtins":
        return builtins
    if name == "torch.ops.image":  # a namespace that torch makes, not a module of its own
        torch = sys.modules.get("torch")
        return torch.ops.image if torch and "torchvision.io" in sys.modules else None
    return sys.modules.get(name)


def _subclasses(cls: type) -> list[type]:
    direct: list[type] = cls.__subclasses__()
    return [below for sub in direct for below in (sub, *_subclasses(sub))]
