"""Every setting of a run, and every rule that makes one valid. Nothing else: no torch, no files.

One frozen dataclass a section of the YAML file. `None` in `ModelConfig` means "as the model's name says"; the zoo
(`vit/models/zoo.py`) turns a `ModelConfig` into a full `ViTConfig` or `ResNetConfig`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Pooling = Literal["cls", "gap", "map"]
Positions = Literal["learned_1d", "learned_2d", "sincos_2d", "relative", "rope", "none"]
FeedForwardKind = Literal["gelu", "swiglu"]
Stem = Literal["patch", "resnet"]
Backend = Literal["auto", "reference", "matmul", "sdpa"]
Interpolation = Literal["bilinear", "bicubic", "nearest"]


def nearest(name: str, choices: Iterable[str]) -> str:
    """`, did you mean 'x'?` for the choice that looks most like `name`, or the list of all of them."""
    names = sorted(choices)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names)}"


def check(condition: bool, field_name: str, value: object, rule: str) -> None:
    """Raise the one line a user sees when a setting breaks a rule."""
    if not condition:
        raise ValueError(f"{field_name}: {value!r} is not valid: {rule}")


def _check_rate(field_name: str, value: float | None) -> None:
    check(value is None or 0 <= value < 1, field_name, value, "it must be at least 0 and below 1")


def _check_positive(field_name: str, value: float | None) -> None:
    check(value is None or value > 0, field_name, value, "it must be above 0")


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer's architecture, complete. Sizes are (height, width) in pixels."""

    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    num_classes: int = 1000
    """0: no head; `forward` returns the pooled features."""
    width: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_ratio: float = 4.0
    pooling: Pooling = "cls"
    class_token: bool = True
    distillation_token: bool = False
    num_registers: int = 0
    positions: Positions = "learned_1d"
    feedforward: FeedForwardKind = "gelu"
    qk_norm: bool = False
    qkv_bias: bool = True
    pre_norm: bool = False
    """A LayerNorm before the first block (CLIP)."""
    final_norm: Literal["tokens", "pooled"] = "tokens"
    """LayerNorm on all tokens before pooling, or on the pooled vector (timm's `fc_norm`)."""
    positions_on_prefix: bool = True
    """Whether the class and distillation tokens have a learned position (ViT) or not (DeiT-III)."""
    layer_scale: float | None = None
    """Initial value of LayerScale; None: none."""
    norm_eps: float = 1e-6
    stem: Stem = "patch"
    stochastic_depth_rate: float = 0.0
    """Rate of the last block; it grows linearly with depth."""
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    patch_dropout_rate: float = 0.0
    init: Literal["xavier", "normal"] = "xavier"
    """`xavier`: fan-averaged, for small widths; `normal`: truncated, std 0.02, as most published ViTs."""
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        for name in ("width", "depth", "num_heads", "mlp_ratio"):
            _check_positive(f"model.{name}", getattr(self, name))
        check(self.num_classes >= 0, "model.num_classes", self.num_classes, "it must be at least 0")
        check(self.num_registers >= 0, "model.num_registers", self.num_registers, "it must be at least 0")
        _check_heads(self.width, self.num_heads)
        _check_patches(self.image_size, self.patch_size)
        for name in ("stochastic_depth_rate", "dropout_rate", "attention_dropout_rate", "patch_dropout_rate"):
            _check_rate(f"model.{name}", getattr(self, name))
        _check_positive("model.layer_scale", self.layer_scale)
        self._check_tokens()

    def _check_tokens(self) -> None:
        needs_class_token = self.pooling == "cls"
        check(
            self.class_token or not needs_class_token,
            "model.class_token",
            self.class_token,
            "model.pooling 'cls' reads the class token; set it to true or choose model.pooling 'gap' or 'map'",
        )
        check(
            not self.distillation_token or needs_class_token,
            "model.distillation_token",
            True,
            "its head is averaged with the class token's, so model.pooling must be 'cls'",
        )
        if self.positions in ("sincos_2d", "learned_2d", "rope"):
            divisor, of, what = {
                "sincos_2d": (4, self.width, "model.width"),
                "learned_2d": (2, self.width, "model.width"),
                "rope": (4, self.width // self.num_heads, "model.width / model.num_heads"),
            }[self.positions]
            check(
                of % divisor == 0,
                what,
                of,
                f"model.positions {self.positions!r} needs a multiple of {divisor}",
            )
        if self.stem == "resnet":
            check(
                min(self.patch_size) >= 8 and all(p % 4 == 0 for p in self.patch_size),
                "model.patch_size",
                self.patch_size,
                "the ResNet stem halves the image twice before patches are cut: use a multiple of 4, at least 8",
            )

    @property
    def grid_size(self) -> tuple[int, int]:
        """Patches along the height and the width."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def num_prefix_tokens(self) -> int:
        return int(self.class_token) + int(self.distillation_token) + self.num_registers


def _check_heads(width: int, num_heads: int) -> None:
    if width % num_heads == 0 and num_heads <= width:
        return
    divisors = [n for n in range(1, width + 1) if width % n == 0]
    best = min(divisors, key=lambda n: abs(n - num_heads))
    rule = f"it must divide model.width ({width}); the nearest that does is {best}"
    raise ValueError(f"model.num_heads: {num_heads} is not valid: {rule}")


def _check_patches(image_size: tuple[int, int], patch_size: tuple[int, int]) -> None:
    for side, image, patch in zip(("height", "width"), image_size, patch_size, strict=True):
        check(patch > 0, "model.patch_size", patch_size, "it must be above 0")
        below, above = image // patch * patch, (image // patch + 1) * patch
        choices = f"{below} or {above}" if below else f"{above}"
        rule = f"the patch {side} {patch} must divide the image {side}; the nearest image sizes are {choices}"
        check(image > 0 and image % patch == 0, "model.image_size", image_size, rule)


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """A ResNet baseline's architecture, complete."""

    depth: Literal[18, 34, 50] = 50
    num_classes: int = 1000
    image_size: tuple[int, int] = (224, 224)
    stem: Literal["imagenet", "cifar"] = "imagenet"
    """`cifar`: a 3×3 convolution of stride 1 and no pooling, for images of 8 to 64 pixels."""
    width: int = 64
    """Channels of the first stage."""

    def __post_init__(self) -> None:
        _check_positive("model.width", self.width)
        check(self.num_classes >= 0, "model.num_classes", self.num_classes, "it must be at least 0")
        check(
            self.width == 64 or self.depth in (18, 34),
            "model.width",
            self.width,
            "only resnet18 and resnet34 take another width than 64",
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model by name; every other architectural field overrides what the name says."""

    name: str | None = None
    """One of `list_models()`; None: the architecture of `pretrained`."""
    pretrained: str | None = None
    """A run folder, a weights file, or `timm:NAME`."""
    new_head: bool = False
    """Replace the head when the pretrained weights have other classes than the data."""
    freeze_backbone: bool = False
    """Train the head only."""
    num_classes: int | None = None
    image_size: int | tuple[int, int] | None = None
    patch_size: int | tuple[int, int] | None = None
    width: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    mlp_ratio: float | None = None
    pooling: Pooling | None = None
    class_token: bool | None = None
    distillation_token: bool | None = None
    num_registers: int | None = None
    positions: Positions | None = None
    feedforward: FeedForwardKind | None = None
    qk_norm: bool | None = None
    qkv_bias: bool | None = None
    pre_norm: bool | None = None
    final_norm: Literal["tokens", "pooled"] | None = None
    positions_on_prefix: bool | None = None
    layer_scale: float | None = None
    norm_eps: float | None = None
    stem: Literal["patch", "resnet", "imagenet", "cifar"] | None = None
    stochastic_depth_rate: float | None = None
    dropout_rate: float | None = None
    attention_dropout_rate: float | None = None
    patch_dropout_rate: float | None = None
    init: Literal["xavier", "normal"] | None = None
    backend: Backend | None = None

    def __post_init__(self) -> None:
        check(
            self.pretrained is not None or not (self.new_head or self.freeze_backbone),
            "model.new_head" if self.new_head else "model.freeze_backbone",
            True,
            "it has no effect without model.pretrained",
        )


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How an image becomes a model's input at evaluation. Stored with the weights and enforced."""

    image_size: tuple[int, int]
    crop_fraction: float = 1.0
    """The image's shorter side is resized to image_size / crop_fraction, then the centre is cut out."""
    interpolation: Interpolation = "bicubic"
    antialias: bool = True
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        check(0 < self.crop_fraction <= 1, "data.crop_fraction", self.crop_fraction, "it must be in (0, 1]")
        check(min(self.std) > 0, "data.std", self.std, "every entry must be above 0")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    name: str = "digits"
    """digits, cifar10, cifar100, imagenette, imagefolder, fake, or `torchvision:CLASS`."""
    root: str = "data"
    """The folder the data set is in, or is downloaded to."""
    download: bool = False
    test_folder: str | None = None
    """`imagefolder` only: the folder of the test set; None: `val`, or `test` where there is no `val`."""
    val_fraction: float = 0.1
    """Part of the training set held out to choose the best checkpoint."""
    split_seed: int = 0
    """Fixes the validation split and the nested subsets; the training seed does not touch them."""
    fraction: float = 1.0
    """Part of the training set to train on; smaller subsets lie inside larger ones, classes balanced."""
    batch_size: int = 128
    """Images an optimizer step, over all processes and accumulated micro-batches."""
    eval_batch_size: int = 256
    """Images a forward pass of one process at evaluation."""
    workers: int = 2
    """Decoding processes of each training process; 0 decodes in the process itself."""
    cache_gib: float = 2.0
    """Sets smaller than this once decoded are kept in memory as one uint8 tensor; 0: never."""
    canvas_size: int | None = None
    """Side of the square that streamed training images are resized to at decode; None: 256/224 of the image size."""
    on_broken_image: Literal["fail", "skip"] = "fail"
    crop_fraction: float = 1.0
    interpolation: Interpolation = "bicubic"
    antialias: bool = True
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    fake_images: int = 512
    """`fake` only: images in the training set; a quarter of it again in the test set."""
    fake_classes: int = 10

    def __post_init__(self) -> None:
        for name in ("batch_size", "eval_batch_size", "fake_images", "fake_classes", "canvas_size"):
            _check_positive(f"data.{name}", getattr(self, name))
        check(self.workers >= 0, "data.workers", self.workers, "it must be at least 0")
        check(self.cache_gib >= 0, "data.cache_gib", self.cache_gib, "it must be at least 0")
        check(0 < self.fraction <= 1, "data.fraction", self.fraction, "it must be in (0, 1]")
        check(0 < self.val_fraction < 1, "data.val_fraction", self.val_fraction, "it must be between 0 and 1")
        check(
            self.test_folder is None or self.name == "imagefolder",
            "data.test_folder",
            self.test_folder,
            "it has an effect only with data.name 'imagefolder'",
        )
        self.preprocessing((1, 1))

    def preprocessing(self, image_size: tuple[int, int]) -> Preprocessing:
        return Preprocessing(
            image_size=image_size,
            crop_fraction=self.crop_fraction,
            interpolation=self.interpolation,
            antialias=self.antialias,
            mean=self.mean,
            std=self.std,
        )


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """What is done to a training batch, in this order."""

    crop: Literal["none", "pad", "random_resized"] = "none"
    pad: int = 4
    """`crop: pad` only: pixels of reflected border before the random crop."""
    scale: tuple[float, float] = (0.08, 1.0)
    """`crop: random_resized` only: area of the crop as a fraction of the image."""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """`crop: random_resized` only: width over height of the crop."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    flip: bool = False
    policy: Literal["none", "randaugment", "autoaugment_cifar10", "autoaugment_imagenet", "three_augment"] = "none"
    num_ops: int = 2
    """`policy: randaugment` only."""
    magnitude: float = 9.0
    """`policy: randaugment` only: 0 to 10 as in timm's rand-m9."""
    magnitude_std: float = 0.0
    """`policy: randaugment` only: spread of the magnitude."""
    color_jitter: float = 0.0
    erasing_probability: float = 0.0
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    mix_probability: float = 1.0
    """Part of the mixing groups that are mixed at all."""
    cutmix_probability: float = 0.5
    """Where both are on: how often CutMix rather than Mixup."""
    mix_group: int = 8
    """Mixing partners are found among this many neighbours in the epoch's order."""
    repeats: int = 1
    """Repeated augmentation: every chosen image appears this often in an epoch, and fewer images are chosen."""

    def __post_init__(self) -> None:
        check(0 < self.scale[0] <= self.scale[1] <= 1, "augment.scale", self.scale, "0 < low ≤ high ≤ 1")
        check(0 < self.ratio[0] <= self.ratio[1], "augment.ratio", self.ratio, "0 < low ≤ high")
        for name in ("erasing_probability", "mix_probability", "cutmix_probability"):
            check(0 <= getattr(self, name) <= 1, f"augment.{name}", getattr(self, name), "it must be in [0, 1]")
        for name in ("mixup_alpha", "cutmix_alpha", "color_jitter", "magnitude_std"):
            check(getattr(self, name) >= 0, f"augment.{name}", getattr(self, name), "it must be at least 0")
        check(0 <= self.magnitude <= 10, "augment.magnitude", self.magnitude, "it must be in [0, 10]")
        for name in ("pad", "num_ops", "mix_group", "repeats"):
            check(getattr(self, name) >= 1, f"augment.{name}", getattr(self, name), "it must be at least 1")
        check(self.mix_group >= 2, "augment.mix_group", self.mix_group, "a partner needs a group of at least 2")
        self._check_effects()

    def _check_effects(self) -> None:
        """A field that was changed from its default must have something to act on."""
        random_resized, randaugment = self.crop == "random_resized", self.policy == "randaugment"
        mixup, cutmix = self.mixup_alpha > 0, self.cutmix_alpha > 0
        needs = {
            "pad": (self.crop == "pad", "augment.crop 'pad'"),
            "scale": (random_resized, "augment.crop 'random_resized'"),
            "ratio": (random_resized, "augment.crop 'random_resized'"),
            "interpolation": (random_resized, "augment.crop 'random_resized'"),
            "num_ops": (randaugment, "augment.policy 'randaugment'"),
            "magnitude": (randaugment, "augment.policy 'randaugment'"),
            "magnitude_std": (randaugment, "augment.policy 'randaugment'"),
            "mix_probability": (mixup or cutmix, "augment.mixup_alpha or augment.cutmix_alpha above 0"),
            "mix_group": (self.mixes, "augment.mixup_alpha or augment.cutmix_alpha above 0"),
            "cutmix_probability": (mixup and cutmix, "augment.mixup_alpha and augment.cutmix_alpha above 0"),
        }
        for name, (met, need) in needs.items():
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            check(met or value == default, f"augment.{name}", value, f"it has an effect only with {need}")
        check(
            self.mixes or not (mixup or cutmix),
            "augment.mix_probability",
            self.mix_probability,
            "nothing would be mixed; to turn mixing off set augment.mixup_alpha and augment.cutmix_alpha to 0",
        )
        unused = "cutmix_alpha" if self.cutmix_probability == 0 else "mixup_alpha"
        check(
            0 < self.cutmix_probability < 1 or not (mixup and cutmix),
            "augment.cutmix_probability",
            self.cutmix_probability,
            f"augment.{unused} would have no effect; set that to 0 instead",
        )

    @property
    def mixes(self) -> bool:
        return (self.mixup_alpha > 0 or self.cutmix_alpha > 0) and self.mix_probability > 0


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    name: Literal["adamw", "sgd", "lamb", "muon"] = "adamw"
    lr: float = 1e-3
    """Peak learning rate at `data.batch_size` images a step."""
    weight_decay: float = 0.05
    """Not applied to norms, biases, positions and tokens."""
    betas: tuple[float, float] = (0.9, 0.999)
    """`adamw`, `lamb`, and what `muon` leaves to AdamW."""
    momentum: float = 0.9
    """`sgd` and `muon` only."""
    layer_decay: float = 1.0
    """Each block's rate is this times the next one's (fine-tuning); 1: all the same."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_epochs: float = 0.0
    min_lr: float = 0.0
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        for name in ("lr", "clip_norm"):
            _check_positive(f"optim.{name}", getattr(self, name))
        for name in ("weight_decay", "warmup_epochs", "min_lr"):
            check(getattr(self, name) >= 0, f"optim.{name}", getattr(self, name), "it must be at least 0")
        check(self.min_lr <= self.lr, "optim.min_lr", self.min_lr, f"it must not exceed optim.lr ({self.lr})")
        for beta in (*self.betas, self.momentum):
            _check_rate("optim.betas" if beta in self.betas else "optim.momentum", beta)
        check(0 < self.layer_decay <= 1, "optim.layer_decay", self.layer_decay, "it must be in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Learning from a teacher's predictions (DeiT), through the distillation token where the model has one."""

    teacher: str | None = None
    """A run folder or `timm:NAME`."""
    kind: Literal["hard", "soft"] = "hard"
    weight: float = 0.5
    """Part of the loss that comes from the teacher."""
    temperature: float = 3.0
    """`soft` only."""

    def __post_init__(self) -> None:
        check(0 < self.weight <= 1, "distill.weight", self.weight, "it must be in (0, 1]")
        _check_positive("distill.temperature", self.temperature)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    epochs: int = 10
    accumulation_steps: int = 1
    """Micro-batches that one optimizer step is divided into."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """`auto`: bf16 where the device computes it faster than fp32, else fp32."""
    compile: bool = False
    gradient_checkpointing: bool = False
    loss: Literal["cross_entropy", "bce"] = "cross_entropy"
    label_smoothing: float = 0.0
    ema_decay: float | None = None
    """Decay of the averaged weights a step; they are evaluated and kept beside the raw ones. None: no average."""
    evaluate_every_epochs: int = 1
    save_every_steps: int | None = None
    """Besides the end of every epoch."""
    log_every_steps: int = 10
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in (
            "epochs",
            "accumulation_steps",
            "evaluate_every_epochs",
            "save_every_steps",
            "log_every_steps",
        ):
            _check_positive(f"train.{name}", getattr(self, name))
        _check_rate("train.label_smoothing", self.label_smoothing)
        _check_rate("train.ema_decay", self.ema_decay)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole training run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    seed: int = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    output_dir: str | None = None
    """None: `runs/` and the configuration file's name."""

    def __post_init__(self) -> None:
        steps = self.train.accumulation_steps
        check(
            self.data.batch_size % steps == 0,
            "data.batch_size",
            self.data.batch_size,
            f"train.accumulation_steps ({steps}) must divide it",
        )
        check(self.seed >= 0, "seed", self.seed, "it must be at least 0")
        if self.augment.mixes:
            check(
                self.data.batch_size // steps % self.augment.mix_group == 0,
                "data.batch_size",
                self.data.batch_size,
                f"a micro-batch ({self.data.batch_size // steps} images) must hold whole groups of "
                f"augment.mix_group ({self.augment.mix_group}) images",
            )
        check(
            self.optim.warmup_epochs <= self.train.epochs,
            "optim.warmup_epochs",
            self.optim.warmup_epochs,
            f"it must not exceed train.epochs ({self.train.epochs})",
        )
