"""Folders of Hugging Face's and timm's whose JSON holds something else than it should, key by key."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.faults.malformed.trials import Case
from tests.faults.malformed.weights import VIT, named_as, predict, vit, with_image
from vit.weights.huggingface import write_folder

MISSING = object()
VALUES: dict[str, object] = {
    "missing": MISSING,
    "null": None,
    "true": True,
    "a text": "many",
    "an empty list": [],
    "a list": [3, "a"],
    "an object": {"a": 1},
    "0": 0,
    "a negative number": -4,
    "a fraction": 0.3,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "10^9": 10**9,
    "10^30": 10**30,
}
Change = Callable[[dict[str, Any]], object]
Taken = Mapping[str, Mapping[str, str]]
"""Key → name of a value → why it is taken."""

# ------------------------------------------------------------------ Hugging Face

NAMES = {"id2label": {"0": "cat", "1": "dog", "2": "ship"}}
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "do_center_crop": True,
    "do_rescale": True,
    "do_normalize": True,
    "size": {"height": 8, "width": 8},
    "crop_size": {"height": 8, "width": 8},
    "resample": 2,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
DEFAULT = "transformers' default is what the file said"
CONFIG_TAKEN: Taken = {
    "architectures": dict.fromkeys(("missing", "null", "an empty list", "a list"), "the tensors tell the head"),
    "num_channels": {"missing": DEFAULT},
    "hidden_act": {"missing": DEFAULT},
    "layer_norm_eps": {"missing": DEFAULT} | dict.fromkeys(("a fraction", "10^9", "10^30"), "it is a number"),
    "qkv_bias": {"missing": DEFAULT, "true": "it is so"},
    "pooler_act": {"missing": DEFAULT, "a text": "transformers' own model, which has no pooler with a head"},
    "id2label": dict.fromkeys(("missing", "null"), "the classes are numbered"),
}
PROCESSOR_TAKEN: dict[str, dict[str, str]] = {
    key: dict.fromkeys(("missing", "null"), "the class's default")
    | ({"true": "it is so"} if key.startswith("do_") else {})
    for key in PROCESSOR
}
_A_NUMBER = dict.fromkeys(("a fraction", "10^9", "10^30"), "it is a number above 0")
for _key, _more in {
    "image_processor_type": {"a text": "another class, whose preprocessing is given"},
    "resample": {"0": "the nearest pixel"},
    "rescale_factor": _A_NUMBER,
    "image_std": _A_NUMBER,
    "image_mean": _A_NUMBER | {"0": "it is a number", "a negative number": "it is a number"},
}.items():
    PROCESSOR_TAKEN[_key].update(_more)


def huggingface(folder: Path) -> Path:
    """A whole folder of a ViT of two blocks."""
    write_folder(folder / "m", VIT, vit())
    change_json(folder / "m" / "config.json", lambda content: content.update(NAMES))
    (folder / "m" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder / "m"


def change_json(path: Path, change: Change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# ------------------------------------------------------------------ timm

TIMM_ARGUMENTS = {"img_size": 8, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
TIMM_SETTINGS = {
    "tag": "augreg_in21k",
    "input_size": [3, 8, 8],
    "crop_pct": 0.9,
    "crop_mode": "center",
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}
TIMM = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 3,
    "model_args": TIMM_ARGUMENTS,
    "pretrained_cfg": TIMM_SETTINGS,
    "label_names": ["cat", "dog", "ship"],
}


def timm(folder: Path) -> Path:
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text(json.dumps(TIMM))
    save_file({name: tensor.contiguous() for name, tensor in named_as("timm").items()}, folder / "m/model.safetensors")
    return folder / "m"


TIMM_TAKEN: Taken = {
    "pretrained_cfg": dict.fromkeys(("missing", "null", "an object"), "the preprocessing is given"),
    "label_names": dict.fromkeys(("missing", "null", "an empty list"), "the classes are numbered"),
}
GIVEN = dict.fromkeys(("missing", "null"), "the preprocessing is given")
SETTINGS_TAKEN: Taken = dict.fromkeys(TIMM_SETTINGS, GIVEN) | {
    "crop_pct": GIVEN | {"a fraction": "it is so"},
    "tag": {"missing": "no tag", "null": "no tag", "a text": "no word of it is known"},
}

# ------------------------------------------------------------------ cases


def _set(key: str, value: object, content: dict[str, Any]) -> None:
    content.pop(key, None)
    if value is not MISSING:
        content[key] = value


def _inside(outer: str, key: str, value: object, content: dict[str, Any]) -> None:
    _set(key, value, content[outer])


def _table(
    kind: str, make: Callable[[Path], Path], file: str, keys: Mapping[str, Any], taken: Taken, outer: str = ""
) -> list[Case]:
    found = []
    for key in keys:
        for name, value in VALUES.items():
            change = partial(_inside, outer, key, value) if outer else partial(_set, key, value)

            def write(folder: Path, change: Change = change) -> None:
                change_json(make(folder) / file, change)

            why = taken.get(key, {}).get(name, "")
            found.append(Case(f"{kind}: {key} {name}", with_image(write), predict("m"), why))
    return found


def _replaced(make: Callable[[Path], Path], file: str, content: bytes, folder: Path) -> None:
    (make(folder) / file).write_bytes(content)


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"{",
    "a list": b"[]",
    "null": b"null",
    "a number": b"3",
    "an empty object": b"{}",
    "UTF-16": "{}".encode("utf-16"),
    "invalid UTF-8": b'{"\xff": 1}',
    "a hundred thousand brackets": b"[" * 100_000,
    "a hundred thousand objects": b'{"a":' * 100_000,
    "a number of 10,000 digits": b'{"model_type": "vit", "hidden_size": ' + b"9" * 10_000 + b"}",
    "a byte order mark": b"\xef\xbb\xbf{}",
}
NO_SETTINGS = "no preprocessing is stated, and it is given"


def _piped(make: Callable[[Path], Path], file: str, folder: Path) -> None:
    place = make(folder) / file
    place.unlink(missing_ok=True)
    os.mkfifo(place)


def _sharded(content: object, folder: Path) -> None:
    place = huggingface(folder)
    (place / "model.safetensors").rename(place / "model-1.safetensors")
    (place / "model.safetensors.index.json").write_text(json.dumps(content))


INDEXES: dict[str, object] = {
    "empty": {},
    "a list": [],
    **{f"weight_map {name}": {"weight_map": value} for name, value in VALUES.items() if value is not MISSING},
    "of no such file": {"weight_map": {"a": "no.safetensors"}},
    "of a file outside": {"weight_map": {"a": "../m/model-1.safetensors"}},
    "of an absolute file": {"weight_map": {"a": "/etc/passwd"}},
    "of another kind of file": {"weight_map": {"a": "config.json"}},
    "of itself": {"weight_map": {"a": "model.safetensors.index.json"}},
    "of an object": {"weight_map": {"a": {"b": "c"}}},
}
OTHERS: dict[str, tuple[Change, str]] = {
    "three sides": (lambda content: content.update(image_size=[8, 8, 3]), "image_size: [8, 8, 3] is not valid"),
    "one side in a list": (lambda content: content.update(image_size=[8]), "image_size: [8] is not valid"),
    "a width of 10^6": (lambda content: content.update(hidden_size=10**6), "and the weights beside it have"),
    "a depth of 1,000": (lambda content: content.update(num_hidden_layers=1000), "and the weights beside it have"),
    "images of 32,768 pixels": (lambda content: content.update(image_size=32768), "and the weights beside it have"),
    "patches of 32,768 pixels": (lambda content: content.update(patch_size=32768, image_size=32768), "the weights"),
    "a hidden layer of 10^6": (lambda content: content.update(intermediate_size=10**6), "and the weights beside it"),
    "a name that is an object": (lambda content: content.update(id2label={"0": {"a": 1}}), "id2label"),
    "names by name": (lambda content: content.update(id2label={"cat": "0"}), "id2label"),
    "two names of three": (lambda content: content.update(id2label={"0": "a", "1": "b"}), "class"),
    "four names of three": (lambda content: content.update(id2label=dict.fromkeys("0123", "a")), "class"),
    "names with a gap": (lambda content: content.update(id2label={"0": "a", "1": "b", "7": "c"}), "id2label"),
    "another model": (lambda content: content.update(model_type="swin"), "could not be built by transformers"),
    "a model of text": (lambda content: content.update(model_type="bert"), "could not be built by transformers"),
    "an image tower that is a list": (
        lambda content: content.update(model_type="clip", vision_config=[1]),
        "vision_config: [1] is not valid",
    ),
    "an image tower of texts": (
        lambda content: content.update(model_type="clip", vision_config={"hidden_size": "many"}),
        "vision_config: hidden_size: 'many' is not valid",
    ),
}  # fmt: skip


def cases() -> list[Case]:
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size")
    keys = ("model_type", *sizes, *CONFIG_TAKEN)
    found = _table("Hugging Face", huggingface, "config.json", dict.fromkeys(keys), CONFIG_TAKEN)
    found += _table("processor", huggingface, "preprocessor_config.json", PROCESSOR, PROCESSOR_TAKEN)
    found += _table("timm", timm, "config.json", TIMM, TIMM_TAKEN)
    found += _table("timm's model_args", timm, "config.json", TIMM_ARGUMENTS, {}, "model_args")
    found += _table("timm's pretrained_cfg", timm, "config.json", TIMM_SETTINGS, SETTINGS_TAKEN, "pretrained_cfg")
    for kind, make, file in (
        ("Hugging Face", huggingface, "config.json"),
        ("timm", timm, "config.json"),
        ("processor", huggingface, "preprocessor_config.json"),
    ):
        for name, content in BROKEN.items():
            why = NO_SETTINGS if (kind, name) == ("processor", "an empty object") else ""
            write = partial(_replaced, make, file, content)
            found.append(Case(f"{kind}: {name}", with_image(write), predict("m"), why))
        why = NO_SETTINGS if kind == "processor" else ""
        found.append(Case(f"{kind}: a pipe", with_image(partial(_piped, make, file)), predict("m"), why))
        found.append(
            Case(f"{kind}: weights in a pipe", with_image(partial(_piped, make, "model.safetensors")), predict("m"))
        )
    found += [
        Case(f"index: {name}", with_image(partial(_sharded, content)), predict("m"))
        for name, content in INDEXES.items()
    ]
    for name, (change, says) in OTHERS.items():

        def write_other(folder: Path, change: Change = change) -> None:
            change_json(huggingface(folder) / "config.json", change)

        found.append(Case(f"Hugging Face: {name}", with_image(write_other), predict("m"), says=says))
    return list({case.name: case for case in found}.values())
