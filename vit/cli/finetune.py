"""`vit compare --finetune`: fine-tune pretrained models on the same images and compare them."""

from __future__ import annotations

from pathlib import Path

from vit.cli.parsing import Parser, check_folder
from vit.cli.sources import DATA, LEAKY, split_settings

_DESCRIPTION = """\
Fine-tune any mix of pretrained Vision Transformers and ResNets on the same training images, one recipe for each kind,
as many images seen, and compare them on the test images: `vit compare` of the runs in DIR/runs. Every model gets a new
head, even where its own has the data's classes (else --model.new_head false). Images have each model's own size and
normalisation. Every setting of training can be given as --section.setting, for all models; what shall differ between
the kinds stands in their recipes. A stopped command continues, and trains no finished model again."""


def finetune_and_compare(argv: list[str]) -> None:
    settings, rest = split_settings(argv)
    args = _parser().parse_args(rest)
    check_folder("--output_dir", args.output_dir)
    if args.data is None and not any(word.split("=")[0] == "--data.name" for word in settings):
        raise ValueError("--data: required: the images to fine-tune and compare on, a data set's name or a folder")
    for option in ("data", "epochs", "seed", "device"):
        if getattr(args, option) is not None:
            settings += [f"--{option}={getattr(args, option)}"]
    if args.precision is not None:
        settings += [f"--train.precision={args.precision}"]
    from vit.comparison.metrics import Resampling
    from vit.comparison.report import write_report
    from vit.comparison.tables import summary
    from vit.experiments.finetuning import FinetuneRequest, compare_finetuned
    from vit.experiments.finetuning_table import finetuning_summary, finetuning_tables

    request = FinetuneRequest(
        models=args.models,
        output_dir=args.output_dir,
        settings=settings,
        recipes={"vit": args.vit_recipe, "resnet": args.resnet_recipe},
        architecture=args.architecture,
        image_sizes=args.image_size,
        mean=args.mean,
        std=args.std,
        num_seeds=args.seeds,
        leaky=args.leaky,
        corruptions=args.corruptions,
        speed=args.speed,
        resampling=Resampling(args.resamples, args.seed or 0),
    )
    comparison = compare_finetuned(request)
    write_report(comparison, request.output_dir, finetuning_tables(comparison.result))
    print(finetuning_summary(comparison.result))
    print(summary(comparison.result))
    print(f"see {request.output_dir}/comparison.html")


def _parser() -> Parser:
    parser = Parser(prog="vit compare --finetune", description=_DESCRIPTION)
    model = "weights file or folder, timm:NAME, torchvision:NAME, hf:NAME_OR_FOLDER, or a run folder"
    parser.add_argument("models", nargs="+", metavar="MODEL", help=model)
    parser.add_argument("--finetune", action="store_true", required=True)
    parser.add_argument("--data", help=DATA.partition(" or of")[0])
    parser.add_argument("--epochs", type=int, help="default: the recipes'")
    parser.add_argument("--architecture", metavar="NAME", help="for weights files that do not determine it")
    parser.add_argument("--image_size", type=int, nargs="+", default=(), help="other sizes than the models' own")
    text = "normalisation in [0, 1], for models whose source says none"
    parser.add_argument("--mean", type=float, nargs=3, metavar="M", help=text)
    parser.add_argument("--std", type=float, nargs=3, metavar="S")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from --seed on (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="default: the recipes'; it seeds the bootstrap too")
    recipe = "YAML file, or the name of a packaged configuration (default: %(default)s)"
    parser.add_argument("--vit_recipe", default="finetune_vit", help=recipe)
    parser.add_argument("--resnet_recipe", default="finetune_resnet", help=recipe)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/finetuning"), help="default: %(default)s")
    parser.add_argument("--corruptions", action="store_true", help="also on corrupted test images, 76 times as many")
    parser.add_argument("--speed", action="store_true", help="also measure images per second and peak memory")
    parser.add_argument("--leaky", action="store_true", help=LEAKY)
    parser.add_argument("--resamples", type=int, default=10_000, help="bootstrap resamples (default: %(default)s)")
    parser.add_argument("--device", help="auto, cpu, cuda or mps")
    parser.add_argument("--precision", help="auto, fp32, bf16 or fp16")
    return parser
