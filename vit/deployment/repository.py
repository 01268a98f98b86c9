"""`vit push`: a model as a repository of Hugging Face's hub, in timm's format, opened by timm before it is uploaded."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit.config import check, check_arguments
from vit.deployment.errors import Unfaithful
from vit.hub import OpenedModel
from vit.hub.opening import is_opened_by_default
from vit.hub.preprocessing import model_of_size
from vit.runs import read_summary
from vit.weights.huggingface import HowUsed
from vit.weights.timm_folder_writer import write_timm_folder

NUM_IMAGES = 2
MAX_DIFFERENCE = 1e-4
"""The largest relative difference of logits attributed to rounding."""
_PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
_EVALUATE = re.compile(r"Evaluate again with\n\n    vit eval .*")
"""The end of a run's own card, which names its folder."""
_AGAIN = """Train again with

    vit train --config config.yaml

and evaluate with `vit eval hf-hub:{name} --data DATA`."""
_UNJUDGED = "The record of its training run is of other weights or other preprocessing: its accuracy was not measured."
_PLACE = "output_dir:"


@check_arguments
def write_repository(opened: OpenedModel, folder: str | Path, name: str, licence: str | None = None) -> float:
    """Write the files of the repository `name` (OWNER/MODEL), and return the relative difference of timm's logits.

    These are `config.json`, `model.safetensors` and, as the model card, `README.md`; of a run also its settings in
    `config.yaml`, and in the card its record and pictures if they are of these weights and this preprocessing.
    ValueError for a multi-label model, a folder that is not empty, and what timm has no words for. `Unfaithful`, and
    nothing is left, if timm's model gives other logits.
    """
    folder = Path(folder)
    check_name(name)
    rule = "the thresholds of its labels have no place in timm's format; `vit export` writes them"
    check(not opened.multilabel, "model", opened.source, rule)
    is_new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    check(is_new, "--folder", str(folder), "it holds files already; name a new folder")
    use = HowUsed(opened.stated_preprocessing, opened.class_names)
    # timm refuses images of another size than the model's
    model = model_of_size(opened.model.cpu().float().eval(), opened.preprocessing.image_size)
    try:
        write_timm_folder(folder, model, use, opened.provenance)
        difference = _difference(model, folder, opened.preprocessing.image_size)
        if not difference <= MAX_DIFFERENCE:
            raise Unfaithful(f"push: timm's model gives other logits (by {difference:.1e}), and nothing was written")
        run = evaluated_run(opened)
        if run is not None:
            settings = (run / "config.yaml").read_text(encoding="utf-8").splitlines(keepends=True)
            kept = "".join(line for line in settings if not line.startswith(_PLACE))
            (folder / "config.yaml").write_text(kept, encoding="utf-8")
        pictures = run is not None and _copy_pictures(run, folder)
        (folder / "README.md").write_text("\n".join(_card(opened, run, name, licence, pictures)), encoding="utf-8")
    except BaseException:  # an interrupt as well: a half-written folder would be refused the next time
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return difference


def check_name(name: str) -> None:
    """ValueError for a name that no repository can have."""
    owner, _, model = name.partition("/")
    rule = "a repository is named OWNER/MODEL, in letters, digits, - _ and ."
    check(all(re.fullmatch(r"[\w.-]+", part, re.ASCII) for part in (owner, model)), "NAME", name, rule)


def upload(folder: Path, name: str, *, private: bool) -> str:
    """Upload a folder as the repository `name`, which is created where it is missing, and return its address.

    OSError, in one line, where that fails.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=name, commit_message="Upload a model with vit push")
    except Exception as error:  # noqa: BLE001  which HTTP client the hub's has, and so its errors, differs by version
        reason = " ".join(str(error).split())[:200]
        remedy = f"its files are in {folder}; `hf auth login` gives the right to write"
        raise OSError(f"push: {name} could not be uploaded ({reason}); {remedy}") from None
    return str(address)


def _difference(model: nn.Module, folder: Path, image_size: tuple[int, int]) -> float:
    """Largest |timm's logits - ours| over the largest of ours, on random images."""
    import timm

    theirs = timm.create_model(f"local-dir:{folder.resolve()}", pretrained=True).eval()
    images = torch.randn(NUM_IMAGES, 3, *image_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours = model(images)
        return float((theirs(images) - ours).abs().max() / ours.abs().max().clamp(min=torch.finfo(ours.dtype).tiny))


def evaluated_run(opened: OpenedModel) -> Path | None:
    """The folder of the finished run that the model is from; None if its record is of other weights or images."""
    path = Path(opened.source)
    run = path.parent.parent if (path / "state.json").is_file() else path
    if opened.state is None or not (run / "summary.json").is_file() or not is_opened_by_default(opened, run):
        return None
    # a finished run that is continued keeps its summary until it is finished again
    tested = read_summary(run).get("best.step")
    return run if tested is not None and tested == opened.state["progress"]["step"] else None


def _copy_pictures(run: Path, folder: Path) -> bool:
    """Copy the pictures of the run's own card, and return whether all of them are there."""
    if not (run / "README.md").is_file():
        return False
    pictures = _PICTURE.findall((run / "README.md").read_text(encoding="utf-8"))
    if not all((run / picture).is_file() for picture in pictures):
        return False
    for picture in pictures:
        (folder / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run / picture, folder / picture)
    return True


def _card(opened: OpenedModel, run: Path | None, name: str, licence: str | None, pictures: bool) -> Iterator[str]:
    """The lines of the model card, with the record of `run`; its head is YAML for the hub, in JSON's words."""
    yield "---"
    yield from (f"{key}: {json.dumps(value)}" for key, value in _head_of_card(opened, run, name, licence).items())
    yield "---"
    yield f"# {name.partition('/')[2]}"
    yield ""
    yield replace(opened, source=name, report=None).summary()
    yield ""
    yield "```python"
    yield "import timm"
    yield ""
    yield f'model = timm.create_model("hf-hub:{name}", pretrained=True).eval()'
    yield "```"
    yield ""
    yield f"With `vit`: `vit predict hf-hub:{name} photo.jpg`."
    if run is not None and (run / "README.md").is_file():
        text = (run / "README.md").read_text(encoding="utf-8").replace("# ", "## The training run: ", 1)
        yield ""
        yield _EVALUATE.sub(_AGAIN.format(name=name), text if pictures else _PICTURE.sub("", text))
    elif opened.state is not None:
        yield ""
        yield _UNJUDGED


def _head_of_card(opened: OpenedModel, run: Path | None, name: str, licence: str | None) -> dict[str, Any]:
    head: dict[str, Any] = {"library_name": "timm", "pipeline_tag": "image-classification", "tags": ["vit"]}
    if licence is not None:
        head["license"] = licence
    if run is None:
        return head
    summary = json.loads((run / "summary.json").read_text())
    if "test.top1" in summary:
        data = " and ".join(opened.provenance.data)
        result = {
            "task": {"type": "image-classification"},
            "dataset": {"name": data, "type": data.replace(" ", "_")},
            "metrics": [{"type": "accuracy", "value": summary["test.top1"]}],
        }
        head["model-index"] = [{"name": name.partition("/")[2], "results": [result]}]
    return head
