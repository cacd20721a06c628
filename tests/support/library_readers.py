"""One small pipeline for each library whose reading and decoding is seen, on files of its own.

A reader makes its files once and reads one of them for each sample, as its library's documentation
does it. It is called through `READERS`, so that nothing but the library's own calls has a name.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

FILES = 4
SAMPLES = 96


class Reader(NamedTuple):
    module: str
    """Modules that must be importable."""
    reads: str
    """Kind of a sample."""
    ending: str
    """Ending of its files."""
    write_file: Callable[[str], Any]
    """Function that makes the file of a path."""
    read_file: Callable[[Any, str], Any]
    """Function that reads a file through the module alone."""
    package: str = ""
    """Name for pip, where it differs from the module's."""

    def write(self, folder: Path) -> None:
        """Make the files in a folder."""
        for number in range(FILES):
            self.write_file(str(folder / f"{number}.{self.ending}"))

    def read(self, folder: Path, number: int) -> Any:
        """Read the sample of a number."""
        return self.read_file(the(self.module), str(folder / f"{number}.{self.ending}"))


class OneLibrary(Dataset):
    """Dataset that reads through one library, and does a little arithmetic."""

    def __init__(self, library: str, folder: Path) -> None:
        self.library = library
        self.folder = folder

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return own_work(READERS[self.library].read(self.folder, index % FILES))


def own_work(values: Any) -> torch.Tensor:
    """Return the dataset's own arithmetic on a few thousand numbers."""
    return torch.from_numpy(np.ravel(values, order="K")[:4096].astype(np.float32))


def the(module: str) -> Any:
    return importlib.import_module(module)


def noise(*shape: int, kind: type = np.uint8) -> np.ndarray:
    """The same numbers in every process, smooth enough to be compressed a little."""
    drawn = np.random.default_rng(0).integers(0, 60, shape)
    return (drawn + np.arange(shape[-1]) % 190).astype(kind)


def image(to: str) -> None:
    """A photograph of 768 to 512 pixels, by PIL."""
    the("PIL.Image").fromarray(noise(512, 768, 3)).save(to)


def table(to: str) -> None:
    frame()[:2000].to_csv(to)


def frame() -> Any:
    return the("pandas").DataFrame(noise(20000, 12, kind=np.float32)).rename(columns=str)


def video(to: str) -> None:
    with the("av").open(to, "w") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for number in range(40):
            pixels = np.roll(noise(240, 320, 3), number, axis=1)
            picture = the("av").VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def frames_of(av: Any, file: str) -> np.ndarray:
    with av.open(file) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)][-1]


def sound(to: str) -> None:
    the("soundfile").write(to, noise(441_000, 2, kind=np.float32) / 300, 44_100)


def dicom(to: str) -> None:
    """One slice, of 12 bits, run-length encoded."""
    pydicom = the("pydicom")
    file = the("pydicom.dataset").FileDataset(to, {}, preamble=b"\0" * 128)
    file.file_meta = the("pydicom.dataset").FileMetaDataset()
    file.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    file.SOPClassUID = pydicom.uid.CTImageStorage
    file.SOPInstanceUID = pydicom.uid.generate_uid()
    pixels = noise(512, 512, kind=np.uint16)
    file.set_pixel_data(pixels, "MONOCHROME2", 12)
    file.compress(pydicom.uid.RLELossless, pixels, generate_instance_uid=False)
    file.save_as(to, enforce_file_format=True)


def netcdf(to: str) -> None:
    """A field that is compressed."""
    with the("netCDF4").Dataset(to, "w") as file:
        file.createDimension("y", 512)
        file.createDimension("x", 512)
        file.createVariable("t", "f4", ("y", "x"), zlib=True)[:] = noise(512, 512)


def netcdf_field(netcdf4: Any, file: str) -> Any:
    with netcdf4.Dataset(file) as opened:
        return opened["t"][:]


def xarray_field(xarray: Any, file: str) -> Any:
    with xarray.open_dataset(file, engine="netcdf4") as opened:
        return opened["t"].load().values


def raster(to: str) -> None:
    """A tile of satellite bands."""
    how = {"driver": "GTiff", "compress": "deflate", "dtype": "uint16"}
    with the("rasterio").open(to, "w", width=384, height=384, count=3, **how) as file:
        file.write(noise(3, 384, 384, kind=np.uint16))


def bands(rasterio: Any, file: str) -> Any:
    with rasterio.open(file) as opened:
        return opened.read()


def hdf5(to: str) -> None:
    """An array in compressed chunks."""
    with the("h5py").File(to, "w") as file:
        file.create_dataset("x", data=noise(512, 768, 3), compression="gzip")


def hdf5_array(h5py: Any, file: str) -> Any:
    with h5py.File(file) as opened:
        return opened["x"][:]


def environment(to: str) -> None:
    """A database of raw images."""
    with the("lmdb").open(to, map_size=1 << 28) as database, database.begin(write=True) as opened:
        opened.put(b"x", noise(1024, 1024, 3).tobytes())


def from_environment(lmdb: Any, file: str) -> Any:
    with lmdb.open(file, readonly=True, lock=False) as database, database.begin() as opened:
        return np.frombuffer(opened.get(b"x"), np.uint8)


def ecg(to: str) -> None:
    signals = noise(60_000, 4, kind=np.float64) / 100
    how = {"fs": 500, "units": ["mV"] * 4, "sig_name": list("abcd"), "fmt": ["16"] * 4}
    the("wfdb").wrsamp(Path(to).stem, p_signal=signals, write_dir=str(Path(to).parent), **how)


def eeg(to: str) -> None:
    mne = the("mne")
    info = mne.create_info(8, 500.0, "eeg", verbose="error")
    mne.io.RawArray(noise(8, 30_000, kind=np.float64), info, verbose="error").save(
        to, verbose="error"
    )


def eeg_values(mne: Any, file: str) -> Any:
    return mne.io.read_raw_fif(file, verbose="error").get_data()


def points(to: str) -> None:
    laspy = the("laspy")
    cloud = laspy.create()
    cloud.x, cloud.y, cloud.z = noise(3, 200_000, kind=np.float64)
    cloud.write(to)


READERS = {
    "NumPy": Reader(
        "numpy",
        "compressed arrays",
        "npz",
        lambda to: np.savez_compressed(to, x=noise(512, 768, 3)),
        lambda np, file: np.load(file)["x"],
    ),
    "h5py": Reader("h5py", "compressed chunks", "h5", hdf5, hdf5_array),
    "zarr": Reader(
        "zarr",
        "compressed chunks",
        "zarr",
        lambda to: the("zarr").save_array(to, noise(512, 768, 3)),
        lambda zarr, file: zarr.open_array(file, mode="r")[:],
    ),
    "netCDF4": Reader("netCDF4", "compressed field", "nc", netcdf, netcdf_field),
    "xarray": Reader("xarray", "field of netCDF", "nc", netcdf, xarray_field),
    "safetensors": Reader(
        "safetensors.torch",
        "tensors",
        "st",
        lambda to: the("safetensors.torch").save_file(
            {"x": torch.from_numpy(noise(1024, 1536, 3))}, to
        ),
        lambda safetensors, file: safetensors.load_file(file)["x"],
    ),
    "pandas": Reader("pandas", "CSV", "csv", table, lambda pd, file: pd.read_csv(file).to_numpy()),
    "pyarrow": Reader(
        "pyarrow.parquet",
        "row groups of Parquet",
        "pq",
        lambda to: frame().to_parquet(to, row_group_size=5000),
        lambda pq, file: pq.ParquetFile(file).read_row_group(1)[0],
    ),
    "lmdb": Reader("lmdb", "values of a database", "db", environment, from_environment),
    "Pillow": Reader(
        "PIL.Image",
        "JPEG",
        "jpg",
        image,
        lambda pil, file: np.asarray(pil.open(file)),
        "pillow",
    ),
    "torchvision": Reader(
        "torchvision.io", "JPEG", "jpg", image, lambda io, file: io.decode_image(file)
    ),
    "OpenCV": Reader(
        "cv2", "JPEG", "jpg", image, lambda cv2, file: cv2.imread(file), "opencv-python-headless"
    ),
    "imageio": Reader("imageio.v3", "JPEG", "jpg", image, lambda iio, file: iio.imread(file)),
    "scikit-image": Reader(
        "skimage.io", "PNG", "png", image, lambda io, file: io.imread(file), "scikit-image"
    ),
    "simplejpeg": Reader(
        "simplejpeg",
        "JPEG",
        "jpg",
        image,
        lambda simplejpeg, file: simplejpeg.decode_jpeg(Path(file).read_bytes()),
    ),
    "tifffile": Reader(
        "tifffile",
        "compressed TIFF",
        "tif",
        lambda to: the("tifffile").imwrite(to, noise(512, 768, 3), compression="zlib"),
        lambda tifffile, file: tifffile.imread(file),
    ),
    "rasterio": Reader("rasterio", "GeoTIFF", "tif", raster, bands),
    "nibabel": Reader(
        "nibabel",
        "NIfTI, packed",
        "nii.gz",
        lambda to: the("nibabel").save(
            the("nibabel").Nifti1Image(noise(96, 96, 32, kind=np.int16), np.eye(4)), to
        ),
        lambda nibabel, file: nibabel.load(file).get_fdata(),
    ),
    "SimpleITK": Reader(
        "SimpleITK",
        "NRRD, packed",
        "nrrd",
        lambda to: the("SimpleITK").WriteImage(
            the("SimpleITK").GetImageFromArray(noise(32, 96, 96, kind=np.int16)),
            to,
            useCompression=True,
        ),
        lambda sitk, file: sitk.GetArrayFromImage(sitk.ReadImage(file)),
    ),
    "pydicom": Reader(
        "pydicom",
        "DICOM, run-length encoded",
        "dcm",
        dicom,
        lambda pydicom, file: pydicom.dcmread(file).pixel_array,
    ),
    "soundfile": Reader(
        "soundfile", "FLAC", "flac", sound, lambda soundfile, file: soundfile.read(file)[0]
    ),
    "librosa": Reader(
        "librosa", "FLAC, resampled", "flac", sound, lambda librosa, file: librosa.load(file)[0]
    ),
    "SciPy": Reader(
        "scipy.io.wavfile",
        "WAV",
        "wav",
        lambda to: the("scipy.io.wavfile").write(to, 44_100, noise(8_000_000, 2)),
        lambda wavfile, file: wavfile.read(file)[1],
    ),
    "wfdb": Reader(
        "wfdb",
        "signals of WFDB",
        "ecg",
        ecg,
        lambda wfdb, file: wfdb.rdrecord(file.removesuffix(".ecg")).p_signal,
    ),
    "MNE": Reader("mne", "FIF", "raw.fif", eeg, eeg_values),
    "PyAV": Reader("av", "MPEG-4", "mp4", video, frames_of),
    "torchcodec": Reader(
        "torchcodec.decoders",
        "MPEG-4",
        "mp4",
        video,
        lambda decoders, file: decoders.VideoDecoder(file)[:],
    ),
    "decord": Reader(
        "decord",
        "MPEG-4",
        "mp4",
        video,
        lambda decord, file: decord.VideoReader(file).get_batch(range(40)).asnumpy(),
    ),
    "trimesh": Reader(
        "trimesh",
        "PLY",
        "ply",
        lambda to: the("trimesh").creation.icosphere(5).export(to),
        lambda trimesh, file: trimesh.load(file).vertices,
    ),
    "laspy": Reader("laspy", "LAS", "las", points, lambda laspy, file: laspy.read(file).xyz),
}
