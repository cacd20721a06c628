"""One small pipeline for each library whose reading and decoding is seen, on files of its own.

A reader makes its files once and reads one of them for each sample, as its library's documentation
does it. It is called through `READERS`, so that nothing but the library's own calls has a name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = 4
SAMPLES = 96


class Reader(NamedTuple):
    """A library, and how a sample comes through it."""

    module: str
    """What must be importable."""
    reads: str
    """What a sample is."""
    write: Callable[[Path], Any]
    """Makes the files in a folder."""
    read: Callable[[Path, int], Any]
    """Reads the sample of a number through the library alone."""
    package: str = ""
    """What pip calls it, where that is not the module's first name."""


class OneLibrary(Dataset):
    """What one library reads, and a little arithmetic of the dataset's own."""

    def __init__(self, library: str, folder: Path) -> None:
        self.library = library
        self.folder = folder

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return own_work(READERS[self.library].read(self.folder, index % FILES))


def own_work(values: Any) -> torch.Tensor:
    """What the dataset computes itself: a few thousand numbers of what was read."""
    return torch.from_numpy(np.ravel(values, order="K")[:4096].astype(np.float32))


def the(module: str) -> Any:
    """A module, as `import` would give it."""
    return importlib.import_module(module)


def noise(*shape: int, kind: type = np.uint8) -> np.ndarray:
    """The same numbers in every process, smooth enough to be compressed a little."""
    drawn = np.random.default_rng(0).integers(0, 60, shape)
    return (drawn + np.arange(shape[-1]) % 190).astype(kind)


def numbered(folder: Path, number: int, ending: str) -> str:
    """The path of a file."""
    return str(folder / f"{number}.{ending}")


def each(ending: str, write: Callable[[str], Any]) -> Callable[[Path], None]:
    """Writes every file of a folder by a function of its path."""

    def all_of_them(folder: Path) -> None:
        for number in range(FILES):
            write(numbered(folder, number, ending))

    return all_of_them


def path(ending: str, read: Callable[[str], Any]) -> Callable[[Path, int], Any]:
    """Reads a file of a folder by a function of its path."""
    return lambda folder, number: read(numbered(folder, number, ending))


def image(ending: str) -> Callable[[Path], None]:
    """Photographs of 768 to 512 pixels, by PIL."""
    return each(ending, lambda to: the("PIL.Image").fromarray(noise(512, 768, 3)).save(to))


def table(to: str) -> None:
    """Its first rows as text."""
    frame()[:2000].to_csv(to)


def frame() -> Any:
    """A table of 20000 rows and 12 columns."""
    return the("pandas").DataFrame(noise(20000, 12, kind=np.float32)).rename(columns=str)


def video(to: str) -> None:
    """Forty frames of 320 to 240 pixels."""
    with the("av").open(to, "w") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for number in range(40):
            pixels = np.roll(noise(240, 320, 3), number, axis=1)
            picture = the("av").VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def frames_of(file: str) -> np.ndarray:
    """The last one of all frames of a video, through PyAV."""
    with the("av").open(file) as container:
        return [one.to_ndarray(format="rgb24") for one in container.decode(video=0)][-1]


def sound(to: str) -> None:
    """Ten seconds of two channels, by soundfile."""
    the("soundfile").write(to, noise(441_000, 2, kind=np.float32) / 300, 44_100)


def dicom(to: str) -> None:
    """One slice, of 12 bits, run-length encoded."""
    pydicom = the("pydicom")
    one = the("pydicom.dataset").FileDataset(to, {}, preamble=b"\0" * 128)
    one.file_meta = the("pydicom.dataset").FileMetaDataset()
    one.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    one.SOPClassUID = pydicom.uid.CTImageStorage
    one.SOPInstanceUID = pydicom.uid.generate_uid()
    pixels = noise(512, 512, kind=np.uint16)
    one.set_pixel_data(pixels, "MONOCHROME2", 12)
    one.compress(pydicom.uid.RLELossless, pixels, generate_instance_uid=False)
    one.save_as(to, enforce_file_format=True)


def netcdf(to: str) -> None:
    """A field that is compressed."""
    with the("netCDF4").Dataset(to, "w") as file:
        file.createDimension("y", 512)
        file.createDimension("x", 512)
        file.createVariable("t", "f4", ("y", "x"), zlib=True)[:] = noise(512, 512)


def netcdf_field(file: str) -> Any:
    """That field, through netCDF4."""
    with the("netCDF4").Dataset(file) as opened:
        return opened["t"][:]


def xarray_field(file: str) -> Any:
    """That field, through xarray."""
    with the("xarray").open_dataset(file, engine="netcdf4") as opened:
        return opened["t"].load().values


def raster(to: str) -> None:
    """A tile of satellite bands."""
    how = {"driver": "GTiff", "compress": "deflate", "dtype": "uint16"}
    with the("rasterio").open(to, "w", width=384, height=384, count=3, **how) as file:
        file.write(noise(3, 384, 384, kind=np.uint16))


def bands(file: str) -> Any:
    """All of them, through rasterio."""
    with the("rasterio").open(file) as opened:
        return opened.read()


def hdf5(to: str) -> None:
    """An array in compressed chunks."""
    with the("h5py").File(to, "w") as file:
        file.create_dataset("x", data=noise(512, 768, 3), compression="gzip")


def hdf5_array(file: str) -> Any:
    """That array, through h5py."""
    with the("h5py").File(file) as opened:
        return opened["x"][:]


def environment(folder: Path) -> None:
    """A database of raw images."""
    database = the("lmdb").open(str(folder / "db"), map_size=1 << 28)
    with database, database.begin(write=True) as transaction:
        for number in range(FILES):
            transaction.put(str(number).encode(), noise(1024, 1024, 3).tobytes())


def from_environment(folder: Path, number: int) -> Any:
    """One image of that database."""
    how = {"readonly": True, "lock": False}
    with the("lmdb").open(str(folder / "db"), **how) as database, database.begin() as opened:
        return np.frombuffer(opened.get(str(number).encode()), np.uint8)


def ecg(folder: Path) -> None:
    """Signals of WFDB."""
    for number in range(FILES):
        signals = noise(60_000, 4, kind=np.float64) / 100
        how = {"fs": 500, "units": ["mV"] * 4, "sig_name": list("abcd"), "fmt": ["16"] * 4}
        the("wfdb").wrsamp(f"r{number}", p_signal=signals, write_dir=str(folder), **how)


def eeg(to: str) -> None:
    """A minute of eight channels."""
    mne = the("mne")
    info = mne.create_info(8, 500.0, "eeg", verbose="error")
    mne.io.RawArray(noise(8, 30_000, kind=np.float64), info, verbose="error").save(
        to, verbose="error"
    )


def eeg_values(file: str) -> Any:
    """That minute, through MNE."""
    return the("mne").io.read_raw_fif(file, verbose="error").get_data()


def points(to: str) -> None:
    """A cloud of points."""
    laspy = the("laspy")
    cloud = laspy.create()
    cloud.x, cloud.y, cloud.z = noise(3, 200_000, kind=np.float64)
    cloud.write(to)


READERS = {
    "NumPy": Reader(
        "numpy",
        "compressed arrays",
        each("npz", lambda to: np.savez_compressed(to, x=noise(512, 768, 3))),
        path("npz", lambda file: np.load(file)["x"]),
    ),
    "h5py": Reader("h5py", "compressed chunks", each("h5", hdf5), path("h5", hdf5_array)),
    "zarr": Reader(
        "zarr",
        "compressed chunks",
        each("zarr", lambda to: the("zarr").save_array(to, noise(512, 768, 3))),
        path("zarr", lambda file: the("zarr").open_array(file, mode="r")[:]),
    ),
    "netCDF4": Reader("netCDF4", "compressed field", each("nc", netcdf), path("nc", netcdf_field)),
    "xarray": Reader("xarray", "field of netCDF", each("nc", netcdf), path("nc", xarray_field)),
    "safetensors": Reader(
        "safetensors.torch",
        "tensors",
        each(
            "st",
            lambda to: the("safetensors.torch").save_file(
                {"x": torch.from_numpy(noise(1024, 1536, 3))}, to
            ),
        ),
        path("st", lambda file: the("safetensors.torch").load_file(file)["x"]),
    ),
    "pandas": Reader(
        "pandas",
        "CSV",
        each("csv", table),
        path("csv", lambda file: the("pandas").read_csv(file).to_numpy()),
    ),
    "pyarrow": Reader(
        "pyarrow.parquet",
        "row groups of Parquet",
        each("pq", lambda to: frame().to_parquet(to, row_group_size=5000)),
        path("pq", lambda file: the("pyarrow.parquet").ParquetFile(file).read_row_group(1)[0]),
    ),
    "lmdb": Reader("lmdb", "values of a database", environment, from_environment),
    "Pillow": Reader(
        "PIL.Image",
        "JPEG",
        image("jpg"),
        path("jpg", lambda file: np.asarray(the("PIL.Image").open(file))),
        "pillow",
    ),
    "torchvision": Reader(
        "torchvision.io",
        "JPEG",
        image("jpg"),
        path("jpg", lambda file: the("torchvision.io").decode_image(file)),
    ),
    "OpenCV": Reader(
        "cv2",
        "JPEG",
        image("jpg"),
        path("jpg", lambda file: the("cv2").imread(file)),
        "opencv-python-headless",
    ),
    "imageio": Reader(
        "imageio.v3", "JPEG", image("jpg"), path("jpg", lambda f: the("imageio.v3").imread(f))
    ),
    "scikit-image": Reader(
        "skimage.io",
        "PNG",
        image("png"),
        path("png", lambda file: the("skimage.io").imread(file)),
        "scikit-image",
    ),
    "simplejpeg": Reader(
        "simplejpeg",
        "JPEG",
        image("jpg"),
        path(
            "jpg",
            lambda file: the("simplejpeg").decode_jpeg(the("pathlib").Path(file).read_bytes()),
        ),
    ),
    "tifffile": Reader(
        "tifffile",
        "compressed TIFF",
        each("tif", lambda to: the("tifffile").imwrite(to, noise(512, 768, 3), compression="zlib")),
        path("tif", lambda file: the("tifffile").imread(file)),
    ),
    "rasterio": Reader("rasterio", "GeoTIFF", each("tif", raster), path("tif", bands)),
    "nibabel": Reader(
        "nibabel",
        "NIfTI, packed",
        each(
            "nii.gz",
            lambda to: the("nibabel").save(
                the("nibabel").Nifti1Image(noise(96, 96, 32, kind=np.int16), np.eye(4)), to
            ),
        ),
        path("nii.gz", lambda file: the("nibabel").load(file).get_fdata()),
    ),
    "SimpleITK": Reader(
        "SimpleITK",
        "NRRD, packed",
        each(
            "nrrd",
            lambda to: the("SimpleITK").WriteImage(
                the("SimpleITK").GetImageFromArray(noise(32, 96, 96, kind=np.int16)),
                to,
                useCompression=True,
            ),
        ),
        path(
            "nrrd",
            lambda file: the("SimpleITK").GetArrayFromImage(the("SimpleITK").ReadImage(file)),
        ),
    ),
    "pydicom": Reader(
        "pydicom",
        "DICOM, run-length encoded",
        each("dcm", dicom),
        path("dcm", lambda file: the("pydicom").dcmread(file).pixel_array),
    ),
    "soundfile": Reader(
        "soundfile",
        "FLAC",
        each("flac", sound),
        path("flac", lambda file: the("soundfile").read(file)[0]),
    ),
    "librosa": Reader(
        "librosa",
        "FLAC, resampled",
        each("flac", sound),
        path("flac", lambda file: the("librosa").load(file)[0]),
    ),
    "SciPy": Reader(
        "scipy.io.wavfile",
        "WAV",
        each("wav", lambda to: the("scipy.io.wavfile").write(to, 44_100, noise(8_000_000, 2))),
        path("wav", lambda file: the("scipy.io.wavfile").read(file)[1]),
    ),
    "wfdb": Reader(
        "wfdb",
        "signals of WFDB",
        ecg,
        lambda folder, number: the("wfdb").rdrecord(str(folder / f"r{number}")).p_signal,
    ),
    "MNE": Reader("mne", "FIF", each("raw.fif", eeg), path("raw.fif", eeg_values)),
    "PyAV": Reader("av", "MPEG-4", each("mp4", video), path("mp4", frames_of)),
    "torchcodec": Reader(
        "torchcodec.decoders",
        "MPEG-4",
        each("mp4", video),
        path("mp4", lambda file: the("torchcodec.decoders").VideoDecoder(file)[:]),
    ),
    "decord": Reader(
        "decord",
        "MPEG-4",
        each("mp4", video),
        path("mp4", lambda file: the("decord").VideoReader(file).get_batch(range(40)).asnumpy()),
    ),
    "trimesh": Reader(
        "trimesh",
        "PLY",
        each("ply", lambda to: the("trimesh").creation.icosphere(5).export(to)),
        path("ply", lambda file: the("trimesh").load(file).vertices),
    ),
    "laspy": Reader(
        "laspy", "LAS", each("las", points), path("las", lambda file: the("laspy").read(file).xyz)
    ),
}
