"""YAML as plain values, with bounds on size and depth: aliases can make a few lines into more than any memory holds."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from vit.config.rules import shown

_MOST_BYTES = 2**19
_MOST_VALUES = 100_000
"""Names and values, each alias counted with all that it stands for. Weights of 20,000 classes are a long list."""
_DEEPEST = 20


def packaged_configs() -> dict[str, Path]:
    """The configurations that come with the package, by name, such as `digits_vit` or `text/copying_rnn`."""
    # A wheel holds the files of the repository's configs/ as vit/configs, and so does a checkout, by a link.
    folder = Path(__file__).parents[1] / "configs"
    return {str(file.relative_to(folder).with_suffix("")): file for file in folder.rglob("*.yaml")}


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, and in which a setting that is there twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = Counter(key.value for key, _ in node.value if isinstance(key.value, str))
        for name, number in names.items():
            if number > 1:
                raise yaml.constructor.ConstructorError(
                    problem=f"{shown(name)} is there twice", problem_mark=node.start_mark
                )
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as something else."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(  # YAML 1.1 asks for a point, and for a sign of the exponent
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def dump_yaml(value: Any) -> str:
    """A value in one line, which `load_yaml` reads as the same."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=float("inf"))
    return str(text).replace("\n...", "").strip()


def load_yaml(text: str) -> Any:
    """The values of one document. `yaml.YAMLError` for anything else, and for one that is too deep or too large."""
    _check_depth(text)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {}, [])
        return loader.construct_document(node)
    except RecursionError as error:
        raise yaml.YAMLError(f"it is nested deeper than {_DEEPEST} levels") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # of PyYAML, for values unlike their tag
        raise yaml.YAMLError(f"a value is not of its type ({shown(str(error))})") from error
    finally:
        loader.dispose()


def _check_depth(text: str) -> None:
    """Before nodes are made, which PyYAML does by recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"it is nested deeper than {_DEEPEST} levels")


def _count_values(node: yaml.Node, counted: dict[int, int], above: list[int]) -> int:
    """The number of names and values in a node; `counted` holds those of nodes seen before, `above` the open ones."""
    if id(node) in above:
        raise yaml.YAMLError(f"an alias refers to what it stands in{node.start_mark}")
    if len(above) >= _DEEPEST:
        raise yaml.YAMLError(f"it is nested deeper than {_DEEPEST} levels")
    if id(node) not in counted:
        inner: list[Any] = []
        if isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        counted[id(node)] = 1 + sum(_count_values(part, counted, [*above, id(node)]) for part in inner)
    if counted[id(node)] > _MOST_VALUES:
        raise yaml.YAMLError(f"it has more than {_MOST_VALUES:,} values, or aliases that stand for as many")
    return counted[id(node)]


def read_yaml(path: Path, option: str) -> dict[str, Any]:
    """The mapping in a file. ValueError, one line that begins with `option`, for a file that holds none."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # reading a pipe or a device may wait for ever
            raise ValueError(f"{option}: {shown(str(path))} is a pipe or a device, not a file")
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{option}: {shown(str(path))} is larger than any settings: above {_MOST_BYTES:,} bytes")
        if "\0" in str(path):
            raise ValueError(f"{option}: {shown(str(path))} is not the name of a file")
        content = load_yaml(path.read_text())
    except OSError as error:
        raise ValueError(f"{option}: cannot read {shown(str(path))}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{option}: {shown(str(path))} is not a text file") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{option}: {shown(str(path))} is not YAML: {' '.join(str(error).split())[:500]}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{option}: {shown(str(path))} must hold sections such as model: and data:")
    return content
