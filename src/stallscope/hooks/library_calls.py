"""The library calls that matter in a data pipeline, and the stage that each of them is.

Three sorts. Reading and decoding are stages of their own wherever they happen, because they
happen in surprising places: `PIL.Image.open` is lazy, so the first transform that touches the
pixels decodes them. A transforming call (`cv2.resize`) is a stage only in the dataset's own code;
inside a transform that has a name it belongs to that transform (see `hooks/hot_path.py`).

What is read through an open file object (`file.read()`) cannot be hooked without changing the
object's type; it stays in `getitem`, as waiting.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stallscope.hooks.find_ops import is_librarys, package
from stallscope.hooks.libraries import stage_iterator, subclasses
from stallscope.hooks.patches import names_in, unseen
from stallscope.stages import DECODE, FETCH, SEEK, UNPACK, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.hooks.hot_path import Recorder
    from stallscope.hooks.patches import Patches


_READS_AND_DECODES: Final = {
    name: f"{name} reads and decodes in one call: its reading is part of 'decode'"
    for name in (
        *("SimpleITK.ReadImage", "cv2.imread", "imageio.v3.imread", "librosa.core.audio.load"),
        *("scipy.io.wavfile.read", "skimage.io._io.imread", "soundfile.read", "tifffile.imread"),
    )
}
"""Notes of a run, by the call in `CALLS`: such a call cannot be divided."""


_NAMESPACE: Final = "torch.ops.image"
"""Made by torch, no module of its own."""
_SHARED: Final = ("builtins", "io", _NAMESPACE)
"""Modules from which nobody imports a function by its name."""


class LibraryCall(NamedTuple):
    """A library's function or method."""

    module: str
    """Module that must have been imported; until then there is nothing to hook."""
    path: str
    """Name in the module, `Class.method` for a method."""
    stage: Stage
    gives: str = ""
    """Kind of argument or result that the run records: 'file' or 'image'."""
    is_iterator: bool = False
    """True if each `next` of the returned iterator does the work, as in a generator."""

    def find(self) -> tuple[Any, str, Any] | None:
        """Return what holds it, its name there, and the call or None; None if not imported."""
        module = sys.modules.get(self.module)
        if self.module == _NAMESPACE and "torchvision.io" in sys.modules:
            module = sys.modules["torch"].ops.image
        if module is None:
            return None
        owner_name, _, name = self.path.rpartition(".")
        # Past a `__getattr__` that would import the rest of a library only because we ask
        names = getattr(module, "__dict__", {})
        owner = names.get(owner_name) if owner_name else module
        if owner_name or self.module == _NAMESPACE:
            return owner, name, getattr(owner, name, None)
        return owner, name, names.get(name)


def _calls(stage: Stage, module: str, names: str) -> list[LibraryCall]:
    """Return calls of one stage; where one ends with `(path)`, the first argument is the file."""
    return [
        LibraryCall(module, name.removesuffix("(path)"), stage, "file" * name.endswith("(path)"))
        for name in names.split()
    ]


def _transforming(prefix: str, module: str, names: str) -> list[LibraryCall]:
    return [
        LibraryCall(
            module, name, Stage(f"{prefix}.{name.rpartition('.')[2]}", "transform", gives_way=True)
        )
        for name in names.split()
    ]


CALLS: Final = (
    LibraryCall("PIL.Image", "open", FETCH, "image"),
    *_calls(FETCH, "builtins", "open(path)"),
    *_calls(FETCH, "io", "open(path)"),  # the same one, as pathlib calls it
    *_calls(FETCH, "pathlib", "Path.read_bytes(path) Path.read_text(path)"),
    *_calls(FETCH, "PIL.JpegImagePlugin", "JpegImageFile.load_read"),
    *_calls(FETCH, "PIL.PngImagePlugin", "PngImageFile.load_read"),
    # ---- containers: finding a sample, reading it, and unpacking it, where these are apart
    *_calls(SEEK, "tarfile", "TarFile.next"),
    *_calls(FETCH, "tarfile", "ExFileObject.read"),
    *_calls(UNPACK, "zipfile", "ZipFile.read ZipExtFile.read"),
    *_calls(SEEK, "zipfile", "ZipFile.open"),
    *_calls(FETCH, "zipfile", "ZipExtFile._read2"),  # the bytes as they are stored
    *_calls(UNPACK, "gzip", "GzipFile.read decompress"),
    *_calls(FETCH, "datasets.formatting.formatting", "query_table"),
    *_calls(UNPACK, "datasets.formatting.formatting", "format_table"),
    *_calls(FETCH, "fsspec.asyn", "sync"),  # all that s3fs, gcsfs, adlfs and http wait for
    # ---- arrays and tables
    *_calls(FETCH, "numpy", "load(path) fromfile(path) loadtxt(path) genfromtxt(path)"),
    *_calls(FETCH, "numpy.lib.npyio", "NpzFile.__getitem__"),
    *_calls(FETCH, "torch", "load(path)"),
    *_calls(FETCH, "safetensors.torch", "load_file(path)"),
    *_calls(FETCH, "h5py", "Dataset.__getitem__ Dataset.read_direct"),
    *_calls(FETCH, "zarr", "open(path) open_array(path) open_group(path) Array.__getitem__"),
    *_calls(FETCH, "tables", "Array.read Array.__getitem__"),
    *_calls(FETCH, "netCDF4", "Dataset.__init__ Variable.__getitem__"),
    *_calls(FETCH, "xarray", "open_dataset(path) Variable.load"),
    *_calls(FETCH, "scipy.io", "loadmat(path)"),
    *_calls(FETCH, "pandas", "read_csv(path) read_parquet(path) read_feather(path)"),
    *_calls(FETCH, "pandas", "read_pickle(path) read_json(path) read_hdf(path) read_excel(path)"),
    *_calls(FETCH, "pyarrow.csv", "read_csv(path)"),
    *_calls(FETCH, "pyarrow.feather", "read_table(path) read_feather(path)"),
    *_calls(FETCH, "pyarrow.parquet", "read_table(path) ParquetFile.read"),
    *_calls(FETCH, "pyarrow.parquet", "ParquetFile.read_row_group ParquetFile.read_row_groups"),
    # ---- images
    *_calls(FETCH, "torch.ops.image", "read_file(path)"),
    *_calls(DECODE, "torch.ops.image", "decode_image decode_jpeg decode_png decode_webp"),
    *_calls(DECODE, "torch.ops.image", "decode_gif"),
    *_calls(DECODE, "cv2", "imdecode imread(path) VideoCapture.read VideoCapture.retrieve"),
    *_calls(DECODE, "cv2", "VideoCapture.grab VideoCapture.set"),  # to a frame: from a key frame on
    *_calls(DECODE, "tifffile", "imread(path) TiffFile.asarray TiffPage.asarray"),
    *_calls(DECODE, "imageio.v3", "imread(path)"),
    *_calls(DECODE, "skimage.io._io", "imread(path)"),
    *_calls(DECODE, "simplejpeg", "decode_jpeg"),
    *_calls(FETCH, "rasterio", "open(path)"),
    *_calls(DECODE, "rasterio", "DatasetReader.read"),
    # ---- volumes
    *_calls(FETCH, "nibabel", "load(path)"),
    *_calls(DECODE, "nibabel.arrayproxy", "ArrayProxy.__array__ ArrayProxy.__getitem__"),
    *_calls(DECODE, "nibabel.dataobj_images", "DataobjImage.get_fdata"),
    *_calls(DECODE, "SimpleITK", "ReadImage(path) ImageFileReader.Execute GetArrayFromImage"),
    *_calls(FETCH, "pydicom", "dcmread(path)"),
    *_calls(DECODE, "pydicom.dataset", "Dataset.convert_pixel_data"),
    *_calls(DECODE, "pydicom.pixels", "pixel_array"),
    # ---- sound and signals
    *_calls(DECODE, "soundfile", "read(path) SoundFile.read"),
    *_calls(DECODE, "librosa.core.audio", "load(path)"),
    *_calls(DECODE, "scipy.io.wavfile", "read(path)"),
    *_calls(FETCH, "wfdb", "rdrecord(path) rdsamp(path)"),
    *_calls(FETCH, "mne.io.fiff.raw", "read_raw_fif(path)"),
    *_calls(FETCH, "mne.io.base", "BaseRaw.get_data"),
    *_calls(FETCH, "pyedflib", "EdfReader.readSignal"),
    # ---- video
    *_calls(FETCH, "av.container.core", "open(path)"),
    LibraryCall("av.container.input", "InputContainer.demux", FETCH, is_iterator=True),
    LibraryCall("av.container.input", "InputContainer.decode", DECODE, is_iterator=True),
    *_calls(FETCH, "av.container.input", "InputContainer.seek"),
    *_calls(DECODE, "av.packet", "Packet.decode"),
    *_calls(DECODE, "av.codec.context", "CodecContext.decode"),
    *_calls(DECODE, "av.video.frame", "VideoFrame.to_ndarray VideoFrame.to_image"),
    *_calls(DECODE, "av.video.frame", "VideoFrame.reformat"),
    *_calls(DECODE, "av.audio.frame", "AudioFrame.to_ndarray"),
    *_calls(FETCH, "torchcodec.decoders", "VideoDecoder.__init__ AudioDecoder.__init__"),
    *_calls(
        DECODE,
        "torchcodec.decoders",
        "VideoDecoder.__getitem__ VideoDecoder.get_frame_at VideoDecoder.get_frames_at "
        "VideoDecoder.get_frame_played_at VideoDecoder.get_frames_played_at "
        "VideoDecoder.get_frames_in_range VideoDecoder.get_frames_played_in_range "
        "AudioDecoder.get_all_samples AudioDecoder.get_samples_played_in_range",
    ),
    *_calls(FETCH, "decord", "VideoReader.__init__"),
    *_calls(DECODE, "decord", "VideoReader.__getitem__ VideoReader.get_batch"),
    # ---- meshes and points
    *_calls(FETCH, "trimesh", "load(path)"),
    *_calls(FETCH, "laspy", "read(path)"),
    # ---- what is computed with them
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
    *_transforming("librosa", "librosa.core.audio", "resample"),
    *_transforming("librosa", "librosa.feature.spectral", "melspectrogram mfcc"),
    *_transforming(
        "scipy", "scipy.ndimage", "affine_transform gaussian_filter map_coordinates rotate zoom"
    ),
    *_transforming("skimage", "skimage.transform._warps", "rescale resize rotate warp"),
    *_transforming("cv2", "cv2", "cvtColor flip GaussianBlur resize warpAffine warpPerspective"),
)


class Libraries:
    """Hooks the calls of every library that has been imported, and looks again for late ones."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self._recorder, self._patches, self._failures = recorder, patches, recorder.failures
        self._waiting = list(CALLS)
        self._decoders: set[type] = set()
        self._opened: set[type] = set()

    def hook(self) -> None:
        """Hook what is there by now."""
        functions: dict[int, tuple[Any, Any]] = {}
        self._hook_waiting(functions)
        with self._failures.within("the stages of libraries"):
            if functions:
                self._patches.put_everywhere(functions, self._modules())
        with self._failures.within("the stage of PIL's decoders"):
            self._hook_decoders()

    def _hook_waiting(self, functions: dict[int, tuple[Any, Any]], package: str = "") -> None:
        """Hook the calls of modules that have been imported; of one package, where it is named."""
        for call in [each for each in self._waiting if each.module.startswith(package)]:
            with self._failures.within(f"the stage of {call.module}.{call.path}"):
                if self._hook_call(call, functions):
                    self._waiting.remove(call)

    def _hook_call(self, call: LibraryCall, functions: dict[int, tuple[Any, Any]]) -> bool:
        """Hook a method at once, a function by adding it to `functions`; False: not imported."""
        place = call.find()
        if place is None:
            return False
        owner, name, original = place
        if original is None:
            return True  # this version of the library has no such call
        recorder, key = self._recorder, self._recorder.key(call.stage)
        hook = recorder.call(original, key, self._looker(call))
        if call.is_iterator:
            hook = _iterating(recorder, key, original)
        with contextlib.suppress(Exception):  # a class that its library keeps from changing
            self._patches.put(owner, name, hook)
        if "." not in call.path and call.module not in _SHARED:
            functions[id(original)] = (original, hook)
        return True

    def _modules(self) -> list[Any]:
        """Return modules that may have imported a call by name: the user's, and the library's own.

        Torch's alone have so many names that to look through them takes a forked worker 50 ms.
        """
        packages = {package(call.module) for call in CALLS} - {"torch"}
        return [
            module
            for name, module in list(sys.modules.items())
            if package(name) in packages
            or not is_librarys(name, str(names_in(module).get("__file__")), "")
        ]

    def _looker(self, call: LibraryCall) -> Callable[..., None] | None:
        """Return what looks at the result and the arguments of a call."""
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
            if type(result) not in self._opened:  # PIL imports a format when it meets the first
                self._opened.add(type(result))
                self._hook_waiting({}, "PIL.")
                self._hook_decoders()
            record_pixels(*result.size)

        return {"file": file, "image": image}.get(call.gives)

    def _hook_decoders(self) -> None:
        """Hook `load` of PIL's image files, where the pixels come into being."""
        image_file = sys.modules.get("PIL.ImageFile")
        if image_file is None:
            return
        base = image_file.ImageFile
        for cls in [base, *subclasses(base)]:
            if "load" not in vars(cls) or cls in self._decoders:
                continue
            self._decoders.add(cls)
            original = vars(cls)["load"]
            timed = self._recorder.call(original, self._recorder.key(DECODE))
            # Formats with a method of their own (WebP, TIFF) decode before they make their tiles
            hook = _where_tiles_are_left(original, timed) if cls is base else timed
            self._patches.put(cls, "load", hook)


def _where_tiles_are_left(original: Any, timed: Callable[..., Any]) -> Callable[..., Any]:
    """Record a call only where there is work: every operation calls `load`."""

    def load(self: Any) -> Any:
        try:
            works = bool(self.tile)
        except Exception:  # noqa: BLE001 - the original will say what is wrong
            works = False
        return timed(self) if works else original(self)

    return load


@unseen
def _iterating(recorder: Recorder, key: int, original: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def begin(*args: Any, **named: Any) -> Any:
        items = original(*args, **named)
        return stage_iterator(recorder, key, items) if recorder.at_work() else items

    return begin
