"""Image files that are not what they should be, and why some are rightly taken: formats, sizes, modes, metadata."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import cache, partial

import numpy as np
from PIL import ExifTags, Image, features
from PIL.PngImagePlugin import PngInfo

from tests.data.image_folders import picture

SIZE = (40, 32)
Make = Callable[[], bytes]


@cache
def saved(form: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    picture(SIZE, 1).convert(mode).save(file, form, **options)
    return file.getvalue()


# ------------------------------------------------------------------ cut, overwritten, and of other formats

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", *(("AVIF",) if features.check("avif") else ()))
OTHERS: dict[str, bytes] = {
    "nothing": b"",
    "a byte": b"\xff",
    "a text": b"a photograph of a cat\n",
    "HTML, as of a failed download": b"<!DOCTYPE html><html><body>403 Forbidden</body></html>",
    "JSON": b'{"error": "not found"}',
    "a thousand zeros": bytes(1000),
    "noise": np.random.default_rng(0).bytes(1000),
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>',
    "SVG with an entity that grows": b'<!DOCTYPE s [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><svg>&b;</svg>',
    "PDF": b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF",
    "PostScript": b"%!PS-Adobe-3.0\n%%BoundingBox: 0 0 9 9\n(touch pwned) (w) file\nshowpage\n",
    "EPS of a DOS file": b"\xc5\xd0\xd3\xc6" + struct.pack("<6I", 30, 20, 0, 0, 0, 0) + b"%!PS-Adobe-3.0 EPSF-3.0\n",
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100),
    "a film": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + bytes(100),
    "a camera's raw file": b"II*\0\x10\0\0\0CR\x02\0" + bytes(100),
    "Photoshop's": b"8BPS\0\x01" + bytes(100),
    "DICOM": bytes(128) + b"DICM" + bytes(100),
    "OpenEXR": b"\x76\x2f\x31\x01" + bytes(100),
    "JPEG XL": b"\xff\x0a" + bytes(100),
    "a zip archive": b"PK\x03\x04" + bytes(100),
    "a gzip archive": b"\x1f\x8b\x08" + bytes(100),
    "a program": b"\x7fELF\x02\x01\x01" + bytes(100),
    "a pickle": b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x02os\x94.",
    "an array of numpy's": b"\x93NUMPY\x01\x00" + bytes(100),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "a pointer of git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n",
}


# ------------------------------------------------------------------ PNG, chunk by chunk

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes, checksum: int | None = None) -> bytes:
    found = zlib.crc32(kind + data) if checksum is None else checksum
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", found)


def png(
    width: int = 4, height: int = 3, depth: int = 8, color: int = 2, interlace: int = 0, data: bytes | None = None,
    before: bytes = b"", after: bytes = b"",
) -> bytes:  # fmt: skip
    rows = zlib.compress((b"\0" + b"\x80" * 3 * 4) * 3) if data is None else data
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    body = chunk(b"IHDR", header) + before + chunk(b"IDAT", rows) + after + chunk(b"IEND", b"")
    return SIGNATURE + body


PNGS: dict[str, bytes] = {
    "of 100,000 × 100,000 pixels": png(100_000, 100_000),
    "of 2^31 - 1 pixels": png(2**31 - 1, 1),
    "of 2^32 - 1 pixels": png(2**32 - 1, 2**32 - 1),
    "of no width": png(0, 3),
    "of no height": png(4, 0),
    "of no size": png(0, 0),
    "of 3 bits": png(depth=3),
    "of 255 bits": png(depth=255),
    "of an unknown color type": png(color=9),
    "of pixels that are noise": png(data=b"\x12\x34\x56" * 20),
    "of no pixels": png(data=b""),
    "of an unknown filter": png(data=zlib.compress((b"\x09" + bytes(12)) * 3)),
    "with a wrong checksum of the header": SIGNATURE
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 3, 8, 2, 0, 0, 0), 7)
    + png()[33:],
    "with a header of 5 bytes": SIGNATURE + chunk(b"IHDR", bytes(5)) + png()[33:],
    "without a header": SIGNATURE + png()[33:],
    "without pixels": png()[:33] + chunk(b"IEND", b""),
    "of a signature alone": SIGNATURE,
    "with a chunk beyond the end": png()[:33] + struct.pack(">I", 10**9) + b"IDAT" + bytes(10),
    "with a text that unpacks to 200 MB": png(before=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(200 * 2**20)))),
    "with a profile that unpacks to 200 MB": png(before=chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(200 * 2**20)))),
}
PNGS_TAKEN: dict[str, tuple[bytes, str]] = {
    "without a palette": (png(color=3, data=zlib.compress((b"\0" + bytes(4)) * 3)), "its levels are taken as grey"),
    "of pixels that end early": (png(data=zlib.compress(b"\0" + bytes(12))), "no decoder tells; the rest is black"),
    "with a wrong checksum": (png().replace(png()[-16:-12], b"\0\0\0\0"), "the checksum inside the pixels is right"),
    "of one pixel": (png(1, 1, data=zlib.compress(b"\0\x10\x20\x30")), "an image"),
    "of one row": (png(4, 1, data=zlib.compress(b"\0" + bytes(12))), "an image"),
    "with an unknown private chunk": (png(before=chunk(b"vpAg", b"abc")), "the standard allows it"),
    "with data behind its end": (png() + b"garbage", "the image is whole"),
    "with a broken profile": (
        png(before=chunk(b"iCCP", b"a\0\0" + zlib.compress(b"no profile"))),
        "the pixels are whole",
    ),
}

# ------------------------------------------------------------------ headers of other formats


def _jpeg_of(width: int, height: int) -> bytes:
    content = bytearray(saved("JPEG"))
    place = content.index(b"\xff\xc0") + 5
    content[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(content)


def _without(content: bytes, marker: bytes) -> bytes:
    place = content.index(marker)
    length = struct.unpack(">H", content[place + 2 : place + 4])[0]
    return content[:place] + content[place + 2 + length :]


def _bmp(**changes: int) -> bytes:
    fields = {"size": 40, "width": 4, "height": 3, "planes": 1, "bits": 24, "compression": 0, "bytes": 36} | changes
    header = struct.pack(
        "<IiiHHIIiiII", *(fields[key] for key in ("size", "width", "height", "planes", "bits", "compression", "bytes")),
        0, 0, 0, 0,
    )  # fmt: skip
    return b"BM" + struct.pack("<IHHI", 54 + 36, 0, 0, 54) + header + b"\x90" * 36


def _tiff(entries: list[tuple[int, int, int, int]], following: int = 0) -> bytes:
    """Entries are (tag, type, count, value); `following`: where the next directory is said to be."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + struct.pack("<I", following) + b"\x50" * 64


def _tiff_of(**changes: int) -> bytes:
    tags = {"width": (256, 4, 4), "height": (257, 4, 4), "bits": (258, 3, 8), "compression": (259, 3, 1)}
    tags |= {"photometric": (262, 3, 1), "offset": (273, 4, 100), "samples": (277, 3, 1), "rows": (278, 4, 4)}
    tags |= {"bytes": (279, 4, 16)}
    return _tiff([(tag, kind, 1, changes.get(name, value)) for name, (tag, kind, value) in tags.items()])


HEADERS: dict[str, bytes] = {
    "JPEG of 65,535 × 65,535 pixels": _jpeg_of(65535, 65535),
    "JPEG of no height": _jpeg_of(40, 0),
    "JPEG of no width": _jpeg_of(0, 32),
    "JPEG without a frame": _without(saved("JPEG"), b"\xff\xc0"),
    "JPEG without a table of quantizers": saved("JPEG").replace(b"\xff\xdb", b"\xff\xfe"),
    "JPEG without a scan": saved("JPEG")[: saved("JPEG").index(b"\xff\xda")],
    "JPEG of markers alone": b"\xff\xd8\xff\xe0\x00\x10JFIF" + b"\xff" * 500,
    "JPEG of a start alone": b"\xff\xd8\xff",
    "BMP of a negative width": _bmp(width=-4),
    "BMP of 10^9 × 10^9 pixels": _bmp(width=10**9, height=10**9),
    "BMP of 7 bits": _bmp(bits=7),
    "BMP of an unknown compression": _bmp(compression=9),
    "BMP of a header of 41 bytes": _bmp(size=41),
    "BMP of a header of 2^31 bytes": _bmp(size=2**31),
    "PPM of 10^6 × 10^6 pixels": b"P6 1000000 1000000 255\n" + bytes(100),
    "PPM of a negative size": b"P6 -4 -3 255\n" + bytes(100),
    "PPM of a size of 5,000 digits": b"P6 " + b"9" * 5000 + b" 4 255\n" + bytes(100),
    "PPM of letters": b"P6 many 3 255\n" + bytes(100),
    "PPM of a range of 0": b"P6 4 3 0\n" + bytes(100),
    "PPM of a range of 10^9": b"P6 4 3 1000000000\n" + bytes(100),
    "PPM in text with letters": b"P3 2 1 255\na b c d e f\n",
    "PPM in text that ends early": b"P3 20 10 255\n1 2 3\n",
    "GIF of a screen alone": b"GIF89a\x04\x00\x03\x00\x80\x00\x00" + bytes(6) + b";",
    "GIF of 65,535 × 65,535 pixels": b"GIF89a\xff\xff\xff\xff\x80\x00\x00"
    + bytes(6)
    + b",\0\0\0\0\xff\xff\xff\xff\0\x02\x02L\x01\0;",
    "GIF of a code of 40 bits": b"GIF89a\x04\x00\x03\x00\x80\x00\x00"
    + bytes(6)
    + b",\0\0\0\0\x04\0\x03\0\0\x28\x02L\x01\0;",
    "TIFF that follows itself, without pixels": _tiff([(256, 4, 1, 4)], following=8),
    "TIFF without entries": _tiff([]),
    "TIFF of a directory beyond the end": b"II*\0\xff\xff\xff\x7f",
    "TIFF of 65,535 entries": b"II*\0\x08\0\0\0\xff\xff" + bytes(24),
    "TIFF of 10^9 × 10^9 pixels": _tiff_of(width=10**9, height=10**9),
    "TIFF of no width": _tiff_of(width=0),
    "TIFF of pixels beyond the end": _tiff_of(offset=10**9),
    "TIFF of an unknown compression": _tiff_of(compression=12345),
    "TIFF of 3 bits": _tiff_of(bits=3),
    "TIFF of 255 samples": _tiff_of(samples=255),
    "TIFF of an unknown photometry": _tiff_of(photometric=9999),
    "TIFF of LZW that is noise": _tiff_of(compression=5),
    "TIFF of a JPEG that is noise": _tiff_of(compression=7),
    "WebP of a length of 4 GB": b"RIFF\xff\xff\xff\xffWEBPVP8 " + bytes(30),
    "WebP of no image": b"RIFF\x04\0\0\0WEBP",
    "WebP of noise": b"RIFF\x30\0\0\0WEBPVP8L" + np.random.default_rng(1).bytes(40),
}


# ------------------------------------------------------------------ modes, animations and metadata


def _array(values: np.ndarray, form: str = "TIFF", mode: str | None = None) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(values)
    (image if mode is None else image.convert(mode)).save(file, form)
    return file.getvalue()


def _frames(form: str) -> bytes:
    file = io.BytesIO()
    frames = [picture((12, 9), number) for number in range(3)]
    frames[0].save(file, form, save_all=True, append_images=frames[1:])
    return file.getvalue()


def _exif(value: object, tag: int = ExifTags.Base.Orientation) -> bytes:
    exif = Image.Exif()
    exif[tag] = value
    return saved("JPEG", exif=exif.tobytes())


def _with_text(**texts: str) -> bytes:
    info = PngInfo()
    for key, text in texts.items():
        info.add_text(key, text)
    return saved("PNG", pnginfo=info)


def _large(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height), 99).save(file, "PNG", compress_level=1)
    return file.getvalue()


REFUSED_MODES: dict[str, Make] = {
    "of floats": lambda: _array(np.ones((4, 5), dtype=np.float32)),
    "of NaN": lambda: _array(np.full((4, 5), np.nan, dtype=np.float32)),
    "of 32-bit integers": lambda: _array(np.ones((4, 5), dtype=np.int32)),
    "of 200 megapixels": lambda: _large(20_000, 10_000),
}
ANIMATED = ("GIF", "WEBP", "PNG", "TIFF")
_PIXELS = "the pixels are whole"
_CONVERTED = "converted to RGB"
MODES: dict[str, tuple[Make, str]] = {
    **{f"PNG of mode {mode}": (partial(saved, "PNG", mode), _CONVERTED) for mode in ("1", "L", "LA", "P", "RGBA")},
    "JPEG in grey": (lambda: saved("JPEG", "L"), _CONVERTED),
    "JPEG of CMYK": (lambda: saved("JPEG", "CMYK"), _CONVERTED),
    "JPEG without a table of codes": (lambda: saved("JPEG").replace(b"\xff\xc4", b"\xff\xfe"), "there is a usual one"),
    "progressive JPEG": (lambda: saved("JPEG", progressive=True), "an image"),
    "TIFF of CMYK": (lambda: saved("TIFF", "CMYK"), _CONVERTED),
    "TIFF of LAB": (lambda: saved("TIFF", "LAB"), _CONVERTED),
    "TIFF of YCbCr": (lambda: saved("TIFF", "YCbCr"), _CONVERTED),
    "TIFF of 16 bits": (lambda: _array(np.full((4, 5), 40_000, dtype=np.uint16)), "its upper 8 bits"),
    "PNG of 16 bits": (lambda: _array(np.full((4, 5), 40_000, dtype=np.uint16), "PNG"), "its upper 8 bits"),
    "BMP from top to bottom": (lambda: _bmp(height=-3), "the standard allows it"),
    "PPM in text": (lambda: b"P3 2 1 255\n1 2 3 4 5 6\n", "an image"),
    "PPM with a comment": (lambda: b"P6 # by hand\n2 1 255\n" + bytes(6), "an image"),
    **{f"{form} of three frames": (partial(_frames, form), "its first frame") for form in ANIMATED},
    **{f"orientation {value}": (partial(_exif, value), "turned upright") for value in (1, 6, 8)},
    **{f"orientation {value}": (partial(_exif, value), "taken as upright") for value in (0, 9, 65535)},
    "metadata of 60,000 letters": (lambda: _exif("a" * 60_000, ExifTags.Base.ImageDescription), _PIXELS),
    "metadata that is noise": (lambda: saved("JPEG", exif=b"Exif\0\0" + b"\x99" * 40), _PIXELS),
    "metadata cut off": (lambda: saved("JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff"), _PIXELS),
    "metadata that follows itself": (lambda: saved("JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\x08\0\0\0"), _PIXELS),
    "a profile that is noise": (lambda: saved("JPEG", icc_profile=b"\x99" * 100), _PIXELS),
    "a text with markup": (lambda: _with_text(comment="<script>alert(1)</script>"), _PIXELS),
    "a very wide image": (lambda: _array(np.zeros((1, 60_000), dtype=np.uint8), "PNG"), "an image"),
    "a very tall image": (lambda: _array(np.zeros((60_000, 1), dtype=np.uint8), "PNG"), "an image"),
    "144 megapixels": (lambda: _large(12_000, 12_000), "a photograph may be so large"),
    **{f"{form} as x.jpg": (partial(saved, form), "the content tells the format") for form in FORMATS[1:]},
}


def _cut(form: str, part: float) -> bytes:
    content = saved(form)
    return content[: int(len(content) * part)]


def _same(content: bytes) -> bytes:
    return content


def refused() -> dict[str, Make]:
    """Contents of x.jpg that no decoder takes."""
    found: dict[str, Make] = {name: partial(_same, content) for name, content in OTHERS.items()}
    for form in ("EPS", "ICO", "TGA", "PCX", "SGI", "IM", "MSP", "XBM", "DDS"):
        found[form] = partial(saved, form, "1" if form in ("MSP", "XBM") else "RGB")
    for form in FORMATS:
        for part in (0.01, 0.1, 0.5, 0.9):
            found[f"{form} cut to {part:.0%}"] = partial(_cut, form, part)
    found |= {f"PNG {name}": partial(_same, content) for name, content in PNGS.items()}
    found |= {name: partial(_same, content) for name, content in HEADERS.items()}
    return found | {f"pixels {name}": make for name, make in REFUSED_MODES.items()}


def taken() -> dict[str, tuple[Make, str]]:
    """Contents of x.jpg that are taken, and why."""
    return {f"PNG {name}": (partial(_same, content), why) for name, (content, why) in PNGS_TAKEN.items()} | MODES
