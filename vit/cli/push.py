"""`vit push`: a model as a repository on Hugging Face's hub."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from vit.cli.models import MODEL, add_model_options, model_options, note_random_weights
from vit.cli.output_paths import check_folder, check_outside_run
from vit.cli.parsing import Parser
from vit.config import check

_DESCRIPTION = """\
Upload a Vision Transformer to Hugging Face's hub, in timm's format: weights, class names, preprocessing, and a model
card from the run's record. timm opens the files first, and must give the same logits. Memory: 1 GB, and the weights
three times."""


def push(argv: list[str]) -> None:
    parser = Parser(prog="vit push", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("name", metavar="OWNER/NAME", help="the repository; it is created if it does not exist")
    parser.add_argument("--folder", type=Path, help="keep the files here (default: they are deleted after the upload)")
    parser.add_argument("--dry_run", action="store_true", help="write the files to --folder and upload nothing")
    parser.add_argument("--private", action="store_true", help="make a newly created repository private")
    parser.add_argument("--license", help="for the model card, such as apache-2.0")
    add_model_options(parser)
    args = parser.parse_args(argv)
    check(bool(args.folder) or not args.dry_run, "--dry_run", True, "it needs --folder, or nothing would be left")
    check(not (args.dry_run and args.private), "--private", True, "nothing is uploaded with --dry_run")
    check_folder("--folder", args.folder)
    check_outside_run("--folder", args.folder, args.model)
    from vit.deployment.repository import check_name, evaluated_run, upload, write_repository
    from vit.hub import open_model, source_kind

    check_name(args.name)
    options = model_options(args)
    if source_kind(args.model) in ("file", "folder", "library") and options["implementation"] == "auto":
        options["implementation"] = "ours"  # only our model has the names that are converted
    opened = open_model(args.model, **options)
    folder = args.folder or Path(tempfile.mkdtemp(prefix="vit-push-")) / "repository"
    is_uploading = False
    try:
        difference = write_repository(opened, folder, args.name, args.license)
        note_random_weights(opened)
        if opened.state is not None and evaluated_run(opened) is None:
            line = "note: the card holds no accuracy: the run's record is of other weights or preprocessing"
            print(line, file=sys.stderr)
        print(f"{folder}: timm opens it, and its logits differ by {difference:.1e} of the largest")
        if not args.dry_run:
            is_uploading = True
            print(f"uploaded: {upload(folder, args.name, private=args.private)}")
            is_uploading = False
    finally:
        if not args.folder and not is_uploading:  # the files stay where the upload failed
            shutil.rmtree(folder.parent)
