"""Sources of vLLM releases, fetched from the package index once and kept in the user's cache.

A release is put under test as source: its archive is downloaded, compared with the sha256 digest
that the index gives for it, and unpacked without being built. Only its Python files are kept::

    CACHE/releases/vllm-X/                  what `release` returns, an entry for `sys.path`
    CACHE/releases/vllm-X/kvconform.json    version and digest: there only when all the tree is

CACHE is `$KVCONFORM_CACHE`, or else the platform's cache directory of this user. The index is
`$PIP_INDEX_URL`, or else the default of pypi-simple. A release in the cache needs no network.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    import tarfile

    from packaging.version import Version
    from pypi_simple import DistributionPackage, PyPISimple

__all__ = ["Progress", "Reason", "ReleaseError", "cached", "release"]

Progress = Callable[[int, int | None], None]
"""Told the bytes received so far and the bytes in all, None where the index gives no length."""

Reason = Literal["version", "unknown", "network", "digest", "archive", "space", "cache"]

MARKER = "kvconform.json"
PARTIAL = ".partial-"
SILENCE = 30.0  # seconds without a byte from the index


class ReleaseError(Exception):
    """A release cannot be had; its text is one line for a person to read.

    `reason` says in a word what was wrong: "version" (not a version number), "unknown" (the index
    has no such release), "network", "digest" (none given, or another one), "archive" (unreadable),
    "space" (disk full), "cache" (the cache directory cannot be used).
    """

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message, reason)
        self.reason: Reason = reason

    def __str__(self) -> str:
        return str(self.args[0])


def release(version: str, *, progress: Progress | None = None) -> Path:
    """Return the directory of vLLM `version` that goes on `sys.path`, fetching it unless cached.

    `progress` is called during the download, in bytes. Processes that ask for one release at once
    take turns: the first fetches it and the others find it in the cache.

    Raises ReleaseError, and keeps nothing, when the release cannot be had.
    """
    wanted = _parse(version)
    if wanted is None:
        message = f"{version!r} is not a version of vLLM; write a number such as 0.33.0"
        raise ReleaseError(message, "version")
    root = _root()
    found = _find(root, wanted)
    if found is not None:
        return found
    try:
        return _fetch(root, wanted, progress)
    except OSError as error:
        why = error.strerror or str(error)
        message = f"cannot keep vLLM {wanted} in {root} (KVCONFORM_CACHE names another place): {why}"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise ReleaseError(message, "space" if full else "cache") from error


def cached() -> list[str]:
    """Return the versions in the cache, lowest first. Uses no network and raises nothing."""
    from packaging.version import Version

    return sorted(_versions(_root()), key=Version)


def _root() -> Path:
    override = os.environ.get("KVCONFORM_CACHE")
    if override:
        # Not Path.expanduser: it raises for a user without a home.
        return Path(os.path.expanduser(override)).absolute() / "releases"
    from platformdirs import user_cache_path

    return user_cache_path("kvconform") / "releases"


def _index() -> str:
    # Said instead of its address, which may hold a password.
    named = " of PIP_INDEX_URL" if os.environ.get("PIP_INDEX_URL") else ""
    return f"the package index{named}"


def _versions(root: Path) -> Iterator[str]:
    for marker in root.glob(f"vllm-*/{MARKER}"):
        try:
            kept = json.loads(marker.read_bytes())
        except (OSError, ValueError):
            continue
        version = marker.parent.name.removeprefix("vllm-")
        if isinstance(kept, dict) and kept.get("version") == version and _parse(version):
            yield version


def _find(root: Path, wanted: Version) -> Path | None:
    return next((root / f"vllm-{v}" for v in _versions(root) if _parse(v) == wanted), None)


def _parse(version: str | None) -> Version | None:
    from packaging.version import Version

    try:
        return Version(version or "")
    except ValueError:  # InvalidVersion, or a number with more digits than Python reads
        return None


def _fetch(root: Path, wanted: Version, progress: Progress | None) -> Path:
    from filelock import FileLock
    from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

    with PyPISimple(os.environ.get("PIP_INDEX_URL") or PYPI_SIMPLE_ENDPOINT) as client:
        package = _choose(_list(client), wanted)
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / ".lock"):
            return _find(root, wanted) or _install(client, package, root, progress)


def _list(client: PyPISimple) -> list[DistributionPackage]:
    from pypi_simple import NoSuchProjectError, UnsupportedRepoVersionError

    try:
        return client.get_project_page("vllm", timeout=SILENCE).packages
    except NoSuchProjectError as error:
        raise ReleaseError(f"{_index()} has no project vllm", "unknown") from error
    except OSError as error:  # requests' errors are OSErrors
        raise ReleaseError(f"{_index()} cannot be read: {_explain(error)}", "network") from error
    except (ValueError, UnsupportedRepoVersionError) as error:
        message = f"{_index()} cannot be read: its answer is not a list of packages"
        raise ReleaseError(message, "network") from error


def _choose(packages: list[DistributionPackage], wanted: Version) -> DistributionPackage:
    archives = [p for p in packages if p.package_type == "sdist" and p.filename.endswith(".tar.gz")]
    for package in archives:
        if _parse(package.version) == wanted:
            return package
    versions = (_parse(p.version) for p in archives if not p.is_yanked)
    ranked = sorted({v for v in versions if v is not None and not v.is_prerelease})
    message = f"{_index()} has no source archive of vLLM {wanted}"
    if ranked:
        after = sum(version < wanted for version in ranked)
        nearest = " and ".join(map(str, ranked[max(after - 1, 0) : after + 1]))
        message += f"; the nearest there: {nearest}, the latest: {ranked[-1]}"
    raise ReleaseError(message, "unknown")


def _install(client: PyPISimple, package: DistributionPackage, root: Path, progress: Progress | None) -> Path:
    """Fetch and unpack beside the final place, move there last; only for the holder of the lock."""
    import shutil
    import tempfile

    for leftover in root.glob(f"{PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    name = f"vllm-{package.version}"
    final = root / name
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=root, ignore_cleanup_errors=True) as made:
        scratch = Path(made)
        digest = _download(client, package, scratch / "archive.tar.gz", progress)
        tree = _unpack(scratch / "archive.tar.gz", name, scratch / "unpacked")
        marker = json.dumps({"version": package.version, "sha256": digest})
        (tree / MARKER).write_text(marker + "\n", encoding="utf-8")
        if final.exists():  # without a marker, or it would have been found
            final.rename(scratch / "damaged")
        tree.rename(final)
    return final


def _download(
    client: PyPISimple, package: DistributionPackage, archive: Path, progress: Progress | None
) -> str:
    from dataclasses import replace

    from pypi_simple import DigestMismatchError
    from requests import RequestException

    digest = package.digests.get("sha256", "").lower()
    if not digest:
        message = f"{_index()} gives no sha256 digest for {package.filename}: refused"
        raise ReleaseError(message, "digest")
    try:
        client.download_package(
            replace(package, digests={"sha256": digest}),
            archive,
            progress=lambda length: _Tracker(progress, length),
            timeout=SILENCE,
            # The digest is that of the file, so no server may compress it once more on the way.
            headers={"Accept-Encoding": "identity"},
        )
    except DigestMismatchError as error:
        message = f"{package.filename} has not the sha256 digest {_index()} gives for it: refused"
        raise ReleaseError(message, "digest") from error
    except RequestException as error:
        message = f"{package.filename} cannot be fetched: {_explain(error)}"
        raise ReleaseError(message, "network") from error
    return digest


class _Tracker:
    """What pypi-simple reports progress to: increments in, sums out."""

    def __init__(self, progress: Progress | None, total: int | None) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __enter__(self) -> Self:
        self.update(0)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, increment: int) -> None:
        self.done += increment
        if self.progress is not None:
            self.progress(self.done, self.total)


def _unpack(archive: Path, name: str, into: Path) -> Path:
    import gzip
    import tarfile
    import zlib

    def wanted(member: tarfile.TarInfo) -> bool:
        parts = PurePosixPath(member.name).parts
        inside = parts[:2] == (name, "vllm") and ".." not in parts
        return inside and member.isreg() and member.name.endswith(".py")

    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(into, members=filter(wanted, tar), filter="data")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        why = str(error).partition("\n")[0]
        message = f"the source archive {name}.tar.gz cannot be unpacked: {why}"
        raise ReleaseError(message, "archive") from error
    if not (into / name / "vllm").is_dir():
        message = f"the source archive {name}.tar.gz has no Python files in {name}/vllm"
        raise ReleaseError(message, "archive")
    return into / name


def _explain(error: OSError) -> str:
    """Say in a few words what requests says in many, and with the address."""
    from requests import HTTPError, RequestException, Timeout, exceptions

    if isinstance(error, HTTPError) and error.response is not None:
        return f"it answered with HTTP status {error.response.status_code}"
    words = {
        Timeout: f"no answer within {SILENCE:.0f} seconds",
        exceptions.SSLError: "its certificate was not accepted",
        exceptions.ProxyError: "the proxy did not let it through",
        exceptions.ChunkedEncodingError: "the connection broke off",
        exceptions.ConnectionError: "there is no connection, or it was lost",
        RequestException: f"requests reports {type(error).__name__}",
    }
    return next((text for kind, text in words.items() if isinstance(error, kind)), str(error))
