"""Models of the local Hugging Face cache by id, `org/name[@revision]`. Offline: nothing is asked of a network, ever.

Layout: `models--ORG--NAME/refs/REVISION` holds a commit, `snapshots/COMMIT` its files (huggingface_hub, "cache
system"). The cache's place: HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
~/.cache/huggingface/hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from fleet.checkpoints.json_text import shorten
from fleet.checkpoints.source import open_regular, read_at, shown
from fleet.errors import DescriptionError

_ID = re.compile(
    r"(?P<id>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})(@(?P<revision>[^@\s]{1,200}))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_REF = 128
_TOLD = 5


def is_model_id(text: str) -> bool:
    """Whether `text` has the form `org/name` or `org/name@revision`. A path that exists is a path first."""
    matched = _ID.fullmatch(text)
    return matched is not None and ".." not in text and not text.endswith((".json", ".bin", ".gguf", ".safetensors"))


def cache_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Where the cache lies by the variables of huggingface_hub."""
    given = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    if given:
        return os.path.expanduser(given)
    home = environment.get("HF_HOME")
    if not home:
        base = environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
        home = os.path.join(base, "huggingface")
    return os.path.join(os.path.expanduser(home), "hub")


def find_snapshot(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The snapshot folder of the model id `text`. Raises DescriptionError: not in the cache, or not that revision."""
    matched = _ID.fullmatch(text)
    if matched is None or not is_model_id(text):
        raise DescriptionError.at(shown(text), "", "is no model id; give org/name or org/name@revision, or a path")
    name, revision = matched["id"], matched["revision"] or "main"
    cache = cache_folder(environment)
    repository = os.path.join(cache, "models--" + name.replace("/", "--"))
    if not os.path.isdir(repository):
        raise DescriptionError.at(
            shown(text),
            "",
            f"no such file, and not in the local cache: looked for {shown(repository)}; download it there with "
            f"`hf download {name}`, set HF_HOME or HF_HUB_CACHE to where it is, or give the path of its folder",
        )
    commit = _commit(repository, revision)
    folder = os.path.join(repository, "snapshots", commit) if commit else None
    if folder is None or not os.path.isdir(folder) or os.path.islink(folder):
        raise DescriptionError.at(
            shown(text),
            "revision",
            f"{shorten(revision)} is not in the local cache: looked in {shown(repository)}; "
            f"{_held(repository)}; download it with `hf download {name} --revision {shorten(revision)}`",
        )
    return folder


def _commit(repository: str, revision: str) -> str | None:
    """The commit of a branch or tag, by `refs`; a commit stands for itself. None when it is not there."""
    if _COMMIT.fullmatch(revision):
        return revision
    path = os.path.join(repository, "refs", *revision.split("/"))
    refs = os.path.join(os.path.realpath(repository), "refs")
    # Pull-request refs have slashes; dots in them must not lead out of `refs`.
    if os.path.commonpath((refs, os.path.realpath(path))) != refs or not os.path.isfile(path):
        return None
    handle, _ = open_regular(path)
    with handle:
        text = read_at(handle, 0, _MAX_REF, path)
    commit = text.decode("ascii", "replace").strip()
    return commit if _COMMIT.fullmatch(commit) else None


def _held(repository: str) -> str:
    """Which revisions the cache has, in words."""
    found: list[str] = []
    for folder in ("refs", "snapshots"):
        path = os.path.join(repository, folder)
        if os.path.isdir(path):
            found += sorted(os.listdir(path))[:_TOLD]
    return f"it has {', '.join(map(shorten, found))}" if found else "it has no revision"
