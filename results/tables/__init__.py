"""Tables of the documents, as Markdown, from the records and from the benchmarks' results."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from results.pictures import data_size
from results.tables.ablation import ingredient_effects
from results.tables.accuracy import (
    compared,
    differences,
    every_way,
    frozen,
    frozen_differences,
    kinds_of_features,
    paired,
    trained,
    whole_processes,
)
from results.tables.deployment import deployed, sensitivity
from results.tables.guarantees import freed_memory, malformed, memory
from results.tables.throughput import (
    attention_on_device,
    compiled_bfloat16,
    compiled_files,
    eight_bits,
    every_cell,
    speed,
)
from vit.experiments.data_size_table import data_size_markdown

_ZEN3 = tuple(f"benchmarks/results/eight_bits_zen3{part}.json" for part in ("", "_ti", "_s", "_b"))
_AMX = tuple(f"benchmarks/results/eight_bits_amx_{part}.json" for part in ("ti", "s", "s_32", "b"))
_BESIDE_EIGHT_BITS = (
    *("vit int8", "vit int8 compiled", "vit fp32", "vit fp32 ahead"),
    *("onnxruntime fp32", "onnxruntime int8", "timm fp32", "timm fp32 ahead", "timm torchao int8"),
)
TABLES: Mapping[str, Callable[[], str]] = {
    "trained": lambda: trained(
        (
            *("digits_vit", "digits_resnet", "cifar10_full/vit_small_cpu", "cifar10_full/resnet_small_cpu"),
            *("cifar10_vit_speedrun_cpu", "cifar10_resnet_speedrun_cpu", "tiny_imagenet_vit_cpu"),
            *("cifar10_full/finetuned/dinov2", "cifar10_full/finetuned/resnet56-4bfd9763"),
        )
    ),
    "photographs": lambda: trained(
        tuple(
            f"photographs/{name}"
            for name in ("vit", "resnet", "vit_all_patches", "vit_growing", "resnet_growing", "vit_earlier_recipe")
        )
    ),
    "speedrun-seeds": lambda: paired(
        {
            "cifar10_vit_speedrun_cpu": "ViT",
            "cifar10_resnet_speedrun_cpu": "ResNet with SGD",
            "cifar10_full/resnet_speedrun_muon": "ResNet with Muon",
        }
    ),
    "speedrun-wall-time": lambda: whole_processes({"cifar10_speedrun_compiled.json": None}),
    "speedrun-twelve-minutes": lambda: whole_processes(
        {"cifar10_12_minutes_vit.json": "ViT", "cifar10_12_minutes_resnet.json": "ResNet"}
    ),
    "cifar10-data-size": lambda: data_size_markdown(data_size("cifar10_data_size")).strip(),
    "cifar10-ablation": lambda: ingredient_effects("cifar10_ablation"),
    "cifar10-every-way": lambda: every_way(
        *(f"cifar10_full/{name}.json" for name in ("untouched", "transfer", "comparison"))
    ),
    "cifar10-untouched-differences": lambda: differences("cifar10_full/untouched.json"),
    "cifar10-frozen-differences": lambda: frozen_differences("cifar10_full/transfer.json"),
    "cifar10-feature-kinds": lambda: kinds_of_features("cifar10_full/dinov2_features.json"),
    "tiny-imagenet-frozen-differences": lambda: frozen_differences("tiny_imagenet_transfer.json"),
    "cifar10-frozen": lambda: frozen("cifar10_full/transfer.json"),
    "tiny-imagenet-frozen": lambda: frozen("tiny_imagenet_transfer.json"),
    "cifar10-compared": lambda: compared("cifar10_full/comparison.json"),
    "cifar10-differences": lambda: differences("cifar10_full/comparison.json"),
    "malformed": malformed,
    "memory": memory,
    "freed-memory": freed_memory,
    "eight-bits": lambda: eight_bits("benchmarks/results/eight_bits_vnni.json"),
    "eight-bits-amx": lambda: eight_bits(*_AMX, others=("vit bf16 ahead", "vit bf16", *_BESIDE_EIGHT_BITS)),
    "compiled-files-bfloat16": lambda: compiled_bfloat16(*_AMX),
    "compiled-files-amx": lambda: compiled_files(*_AMX),
    "eight-bits-without-vnni": lambda: eight_bits(*_ZEN3, others=_BESIDE_EIGHT_BITS),
    "compiled-files": lambda: compiled_files(*_ZEN3),
    "deployed": lambda: deployed(
        {
            "cifar10_vit": "ViT trained on CIFAR-10 for 14 passes",
            "tiny_vit": "ViT trained on Tiny-ImageNet, stopped after 6 of 10 passes",
            "dinov2_probe": "DINOv2-S at 112 pixels with a linear probe for CIFAR-10",
        }
    ),
    "sensitivity": lambda: sensitivity("dinov2_probe", 6),
    "speed": lambda: speed(8, compiled=False),
    "attention-h100": lambda: attention_on_device("benchmarks/results/attention_h100.json"),
    "speed-amx": lambda: every_cell("benchmarks/results/model_speed_amx.json"),
    "speed-h100": lambda: every_cell("benchmarks/results/model_speed_h100.json"),
    "speed-compiled": lambda: speed(8, compiled=True),
    "speed-one-image": lambda: speed(1, compiled=False),
    "speed-one-image-compiled": lambda: speed(1, compiled=True),
}
