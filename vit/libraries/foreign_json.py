"""The JSON files of other libraries, read and validated by a schema (pydantic): a damaged one is a line.

A schema types the keys that are read here, and bounds what would be computed for ever; other keys may hold anything.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Required, TypeVar, get_args, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from vit.config.sizes import MOST_PIXELS

_LONGEST_SHOWN = 60
_T = TypeVar("_T")

Text = Annotated[str, "a text"]
Switch = Annotated[bool, "true or false"]
Count = Annotated[int, Field(ge=0, le=10_000_000), "a whole number from 0 to 10,000,000"]
Width = Annotated[int, Field(ge=1, le=1_000_000), "a whole number from 1 to 1,000,000"]
_Stages = Annotated[list[_T], Field(min_length=1, max_length=100)]
_Size = Annotated[int, Field(ge=1, le=1_000_000)]
Widths = Annotated[_Size | _Stages[_Size], "a whole number from 1 to 1,000,000, or one for each stage"]
_Blocks = Annotated[int, Field(ge=0, le=1_000)]
Depth = Annotated[int, Field(ge=1, le=1_000), "a whole number from 1 to 1,000"]
Pixels = Annotated[int, Field(ge=1, le=MOST_PIXELS)]
Pair = Annotated[list[Pixels], Field(min_length=2, max_length=2)]
Sides = Annotated[Pixels | Pair, "a number of pixels from 1 to 32,768, or height and width"]
Number = Annotated[float, Field(allow_inf_nan=False), "a number"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), "a number above 0"]
Fraction = Annotated[float, Field(gt=0, le=1), "a number above 0 and at most 1"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Names = Annotated[list[str | int] | None, "a list of names"]
Labels = Annotated[
    dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], str | int] | None, "names by number, such as {'0': 'cat'}"
]
Options = Annotated[dict[str, Any] | None, "a JSON object"]
SizeName = Literal["height", "width", "shortest_edge", "longest_edge", "max_height", "max_width"]
SizeByName = dict[SizeName, Pixels | None]


class HuggingFaceFile(TypedDict, total=False):
    """`config.json` of Hugging Face, or the `vision_config` in it."""

    model_type: Text
    architectures: Names
    vision_config: Options
    id2label: Labels
    label_names: Names
    hidden_size: Width
    num_hidden_layers: Depth
    num_attention_heads: Width
    intermediate_size: Width
    mlp_ratio: Positive
    image_size: Sides
    patch_size: Sides
    num_channels: Width
    num_patches: Width
    num_register_tokens: Count
    hidden_act: Text
    layer_norm_eps: Number
    rms_norm_eps: Number
    layerscale_value: Number
    layer_scale_init_value: Number
    rope_theta: Positive
    qkv_bias: Switch
    query_bias: Switch
    value_bias: Switch
    use_swiglu_ffn: Switch
    use_gated_mlp: Switch
    vocab_size: Width
    max_position_embeddings: Width
    type_vocab_size: Width
    hidden_dropout_prob: Number
    attention_probs_dropout_prob: Number


class TimmFile(TypedDict, total=False):
    """`config.json` of timm, and of transformers' wrapper of it."""

    architecture: Required[Text]
    num_classes: Required[Count]
    architectures: Names
    pretrained_cfg: Options
    model_args: Options
    id2label: Labels
    label_names: Names


class TimmSettings(TypedDict, total=False):
    """`pretrained_cfg` of such a file."""

    tag: Annotated[str | None, "a text"]
    input_size: Annotated[list[Pixels], Field(min_length=3, max_length=3), "channels, height and width"]
    crop_pct: Fraction
    crop_mode: Annotated[str | None, "a text"]
    interpolation: Text
    mean: Annotated[list[Finite], Field(min_length=3, max_length=3), "three numbers"]
    std: Annotated[list[Above0], Field(min_length=3, max_length=3), "three numbers above 0"]


class TimmArguments(TypedDict, total=False):
    """`model_args` of such a file."""

    img_size: Annotated[Pixels | Pair | None, "a number of pixels from 1 to 32,768, or height and width"]
    patch_size: Sides
    embed_dim: Widths
    depth: Annotated[_Blocks | _Stages[_Blocks], "a whole number from 0 to 1,000, or one for each stage"]
    num_heads: Widths
    num_classes: Count
    in_chans: Width
    reg_tokens: Count
    mlp_ratio: Positive
    global_pool: Text


class ProcessorFile(TypedDict, total=False):
    """`preprocessor_config.json`, or the `image_processor` of a `processor_config.json`."""

    image_processor_type: Annotated[str | None, "a text"]
    feature_extractor_type: Annotated[str | None, "a text"]
    size: Annotated[Pixels | Pair | SizeByName | None, "a number of pixels, height and width, or shortest_edge"]
    crop_size: Annotated[Pixels | Pair | SizeByName | None, "a number of pixels, or height and width"]
    resample: Annotated[Annotated[int, Field(ge=0, le=5)] | None, "the number of one of PIL's filters, from 0 to 5"]
    crop_pct: Annotated[Fraction | None, "a number above 0 and at most 1"]
    rescale_factor: Annotated[Above0 | None, "a number above 0"]
    image_mean: Annotated[Finite | Annotated[list[Finite], Field(min_length=3, max_length=3)] | None, "three numbers"]
    image_std: Annotated[
        Above0 | Annotated[list[Above0], Field(min_length=3, max_length=3)] | None, "three numbers above 0"
    ]
    do_resize: Annotated[bool | None, "true or false"]
    do_center_crop: Annotated[bool | None, "true or false"]
    do_rescale: Annotated[bool | None, "true or false"]
    do_normalize: Annotated[bool | None, "true or false"]
    do_pad: Annotated[bool | None, "true or false"]
    do_flip_channel_order: Annotated[bool | None, "true or false"]
    default_to_square: Annotated[bool | None, "true or false"]
    rescale_offset: Annotated[bool | None, "true or false"]
    include_top: Annotated[bool | None, "true or false"]
    use_square_size: Annotated[bool | None, "true or false"]


class IndexFile(TypedDict, total=False):
    """`model.safetensors.index.json`: the file of each tensor."""

    weight_map: Required[
        Annotated[
            dict[str, Annotated[str, Field(pattern=r"^[^/\\]+\.safetensors$")]],
            Field(min_length=1),
            "an object of tensors' names, and for each a .safetensors file in the same folder",
        ]
    ]


def read_json(path: Path, schema: type[Any] | None = None) -> dict[str, Any]:
    """Read a file's JSON object. ValueError naming the file, and the key whose value is not as the schema says."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"model.pretrained: there is no file {str(path)!r}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"model.pretrained: {path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"model.pretrained: {path} does not hold a JSON object")
    return content if schema is None else check_schema(content, schema, f"model.pretrained: {path}")


def check_schema(content: dict[str, Any], schema: type[Any], where: str) -> dict[str, Any]:
    """Return the content. ValueError naming the key that is missing, or whose value is not as the schema says."""
    try:
        _adapter(schema).validate_python(content, strict=True)  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        if first["type"] == "missing":
            raise ValueError(f"{where} lacks {key}") from None
        shown = repr(content[key])
        shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"
        raise ValueError(f"{where}: {key}: {shown} is not valid: it must be {_description(schema, key)}") from None
    return content


def _description(schema: type[Any], key: str) -> str:
    """The text in the annotation of a key."""
    hint = get_type_hints(schema, include_extras=True)[key]
    hint = get_args(hint)[0] if not hasattr(hint, "__metadata__") else hint  # Required[…]
    return next(note for note in hint.__metadata__ if isinstance(note, str))


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)
