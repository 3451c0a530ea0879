"""Fetching releases, from a package index served on the loopback interface."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import pickle
import random
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kvconform.conformance.releases import ReleaseError, cached, release

NAME = "vllm-9.9.9.tar.gz"
DEADLINE = 30.0  # seconds, for what takes a fraction of one

GOOD = {
    "vllm-9.9.9/setup.py": "no = 'part of the package'",
    "vllm-9.9.9/pyproject.toml": "",
    "vllm-9.9.9/csrc/kernel.py": "no = 'part of the package'",
    "vllm-9.9.9/vllm/__init__.py": "",
    "vllm-9.9.9/vllm/kernel.cu": "",
    "vllm-9.9.9/vllm/v1/interface.py": "page_size = 16",
}
NOISE = random.Random(0).randbytes(100_000).hex()


def pack(files: dict[str, str], *links: tuple[str, str]) -> bytes:
    """Return a source archive of `files` (name to text) and of symbolic `links` (name, target)."""
    return gzip.compress(bundle(files, *links), mtime=0)


def bundle(files: dict[str, str], *links: tuple[str, str]) -> bytes:
    """Return what `pack` compresses. All may write to its files, if it is believed."""
    bundled = io.BytesIO()
    with tarfile.open(fileobj=bundled, mode="w") as tar:
        for name, target in links:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o666
            tar.addfile(member, io.BytesIO(text.encode()))
    return bundled.getvalue()


@dataclass
class Index:
    """A package index with one project; `asked` are the paths that it was asked for."""

    page_type: str = "application/vnd.pypi.simple.v1+json"
    status: int = 200
    says_length: bool = True
    cut: bool = False  # close the connection in the middle of an archive
    resume: threading.Event | None = None  # wait for it in the middle of an archive
    digests: dict[str, str] = field(default_factory=dict)
    yanked: set[str] = field(default_factory=set)
    content: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add(self, name: str, archive: bytes, *, sha256: str | None = None) -> None:
        """Publish `archive` with its digest, or with `sha256` in its place ("" for none)."""
        self.digests[name] = hashlib.sha256(archive).hexdigest() if sha256 is None else sha256
        self.content[f"/files/{name}"] = archive

    def page(self) -> bytes:
        """Return the project's page as JSON, or as HTML where `page_type` says so."""
        if self.page_type == "text/html":
            links = (
                f'<a href="/files/{name}#sha256={digest}">{name}</a>' for name, digest in self.digests.items()
            )
            return "".join(links).encode()
        files = [
            {
                "filename": name,
                "url": f"/files/{name}",
                "hashes": {"sha256": digest} if digest else {},
                "yanked": name in self.yanked,
            }
            for name, digest in self.digests.items()
        ]
        page = {"meta": {"api-version": "1.0"}, "name": "vllm", "files": files}
        return json.dumps(page).encode()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Send what `request` asks for."""
        self.asked.append(request.path)
        archive = self.content.get(request.path)
        found = self.page() if request.path == "/simple/vllm/" and self.digests else archive
        if found is None:
            request.send_error(404)
            return
        request.send_response(self.status)
        request.send_header("Content-Type", self.page_type)
        if self.says_length:
            request.send_header("Content-Length", str(len(found)))
        request.end_headers()
        half = len(found) // 2
        request.wfile.write(found[:half])
        if archive is not None and self.resume is not None:
            self.resume.wait(DEADLINE)
        if archive is None or not self.cut:
            request.wfile.write(found[half:])

    def archives_asked(self) -> int:
        """Return how often an archive was asked for."""
        return sum(path.startswith("/files/") for path in self.asked)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Index]:
    """Serve an index, and point the environment to it and to an empty cache."""
    served = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A client that is killed, or that has seen enough, hangs up.
            with suppress(ConnectionError):
                served.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("KVCONFORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield served
    if served.resume is not None:
        served.resume.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return where releases are kept, which need not exist."""
    return tmp_path / "cache" / "releases"


def files_under(directory: Path) -> set[str]:
    """Return the files below `directory`, by their relative paths."""
    return {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}


def nothing_kept(root: Path) -> bool:
    """Return whether there is nothing but perhaps the empty file that processes lock."""
    return not root.exists() or {p.name for p in root.iterdir()} <= {".lock"}


def refuse(version: str = "9.9.9") -> ReleaseError:
    """Return the error that asking for `version` raises, which is one line."""
    with pytest.raises(ReleaseError) as caught:
        release(version)
    assert str(caught.value).splitlines() == [str(caught.value)]
    return caught.value


def start_fetch() -> subprocess.Popen[str]:
    """Start a process that fetches 9.9.9 and prints where it is."""
    program = "from kvconform.conformance.releases import release; print(release('9.9.9'))"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for `condition`, or fail the test."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.mark.parametrize("page_type", ["application/vnd.pypi.simple.v1+json", "text/html"])
def test_unpacks_only_python_files_of_the_package(index: Index, root: Path, page_type: str) -> None:
    index.page_type = page_type
    index.add(NAME, pack(GOOD))
    assert release("9.9.9") == root / "vllm-9.9.9"
    assert (root / "vllm-9.9.9/vllm/v1/interface.py").read_text() == "page_size = 16"
    assert files_under(root) == {
        ".lock",
        "vllm-9.9.9/kvconform.json",
        "vllm-9.9.9/vllm/__init__.py",
        "vllm-9.9.9/vllm/v1/interface.py",
    }
    digest = hashlib.sha256(pack(GOOD)).hexdigest()
    marker = json.loads((root / "vllm-9.9.9/kvconform.json").read_text())
    assert marker == {"version": "9.9.9", "sha256": digest}


def test_unpacked_release_can_be_imported(index: Index) -> None:
    index.add(NAME, pack(GOOD))
    program = "from vllm.v1.interface import page_size; print(page_size)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(release("9.9.9"))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "16\n"


@pytest.mark.parametrize("spelling", ["9.9.9", "v9.9.9", "9.9.9.0"])
def test_cached_release_asks_for_nothing(index: Index, spelling: str) -> None:
    index.add(NAME, pack(GOOD))
    first = release("9.9.9")
    index.asked.clear()
    assert release(spelling) == first
    assert index.asked == []


def test_relative_cache_directory_gives_an_absolute_path(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    index.add(NAME, pack(GOOD))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVCONFORM_CACHE", "here")
    assert release("9.9.9") == tmp_path / "here/releases/vllm-9.9.9"


def test_cache_directory_of_the_platform_is_the_default(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    index.add(NAME, pack(GOOD))
    monkeypatch.delenv("KVCONFORM_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "platform" / name)
    assert release("9.9.9") == tmp_path / "platform/kvconform/releases/vllm-9.9.9"


def test_cached_lists_versions_in_their_order(index: Index) -> None:
    assert cached() == []
    for version in ("9.10.0", "9.9.9", "9.9.10rc1"):
        index.add(f"vllm-{version}.tar.gz", pack({f"vllm-{version}/vllm/__init__.py": ""}))
        release(version)
    assert cached() == ["9.9.9", "9.9.10rc1", "9.10.0"]


def test_progress_runs_from_nothing_to_all(index: Index) -> None:
    archive = pack({**GOOD, "vllm-9.9.9/noise": NOISE})
    index.add(NAME, archive)
    told: list[tuple[int, int | None]] = []
    release("9.9.9", progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, len(archive))
    assert told[-1] == (len(archive), len(archive))
    assert len(told) > 2
    assert told == sorted(told)


@pytest.mark.parametrize(("sha256", "said"), [("0" * 64, "has not the"), ("", "gives no sha256")])
def test_wrong_or_missing_digest_is_refused(index: Index, root: Path, sha256: str, said: str) -> None:
    index.add(NAME, pack(GOOD), sha256=sha256)
    error = refuse()
    assert error.reason == "digest"
    assert said in str(error)
    assert NAME in str(error)
    assert nothing_kept(root)


def test_digest_in_capitals_is_the_same_digest(index: Index) -> None:
    index.add(NAME, pack(GOOD), sha256=hashlib.sha256(pack(GOOD)).hexdigest().upper())
    assert release("9.9.9").is_dir()


@pytest.mark.parametrize(("says_length", "reason"), [(True, "network"), (False, "digest")])
def test_truncated_download_is_refused(index: Index, root: Path, says_length: bool, reason: str) -> None:
    index.add(NAME, pack(GOOD))
    index.says_length, index.cut = says_length, True
    assert refuse().reason == reason
    assert nothing_kept(root)
    index.cut = False
    assert release("9.9.9").is_dir()


def damage() -> Iterator[object]:
    """Yield archives that are what the index published and still no good."""
    bundled = bundle({"vllm-9.9.9/vllm/noise.py": NOISE})
    packed = gzip.compress(bundled, mtime=0)
    yield pytest.param(b"no archive", id="not gzip")
    yield pytest.param(gzip.compress(b"no tar archive" * 100), id="not tar")
    yield pytest.param(packed[:-2_000], id="truncated")
    deflate = zlib.compressobj(wbits=31)
    whole = deflate.compress(bundled[:50_000]) + deflate.flush(zlib.Z_FULL_FLUSH)
    yield pytest.param(whole + b"\xff" * 100, id="broken deflate")
    yield pytest.param(gzip.compress(bundled[:50_000]) + b"no gzip", id="broken gzip")
    other = pack({"vllm-9.9.9/setup.py": "", "vllm-9.9.8/vllm/__init__.py": ""})
    yield pytest.param(other, id="no Python files")


@pytest.mark.parametrize("archive", list(damage()))
def test_unreadable_archive_is_refused(index: Index, root: Path, archive: bytes) -> None:
    index.add(NAME, archive)
    error = refuse()
    assert error.reason == "archive"
    assert NAME in str(error)
    assert nothing_kept(root)


def test_no_member_is_written_outside(index: Index, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    hostile = {
        "../evil.py": "",
        f"{outside}/evil.py": "",
        "vllm-9.9.9/vllm/../../../evil.py": "",
        "vllm-9.9.9/vllm/../../../../../evil.py": "",
        "vllm-9.9.9/vllm/../evil.py": "",
        "vllm-9.9.9/vllm/link.py/linked.py": "",
    }
    index.add(NAME, pack({**GOOD, **hostile}, ("vllm-9.9.9/vllm/link.py", str(outside))))
    release("9.9.9")
    assert list(tmp_path.rglob("evil.py")) == []
    assert list(outside.iterdir()) == []


def test_permissions_in_the_archive_do_not_count(index: Index) -> None:
    index.add(NAME, pack(GOOD))
    assert (release("9.9.9") / "vllm/__init__.py").stat().st_mode & 0o777 == 0o644


def test_unknown_version_names_its_neighbours(index: Index, root: Path) -> None:
    for version in ("9.9.8", "9.9.9", "9.10.0", "9.11.0", "9.12.0rc1"):
        index.add(f"vllm-{version}.tar.gz", b"")
    index.add("vllm-9.9.10-py3-none-any.whl", b"")
    error = refuse("9.9.10")
    assert error.reason == "unknown"
    assert "9.9.10; the nearest there: 9.9.9 and 9.10.0, the latest: 9.11.0" in str(error)
    assert "the nearest there: 9.9.8, the latest" in str(refuse("0.1"))
    assert "the nearest there: 9.11.0, the latest" in str(refuse("10"))
    assert nothing_kept(root)


def test_yanked_release_is_fetched_but_not_proposed(index: Index) -> None:
    index.add(NAME, pack(GOOD))
    index.yanked.add(NAME)
    assert "nearest" not in str(refuse("9.9.8"))
    assert release("9.9.9").is_dir()


@pytest.mark.usefixtures("index")
def test_index_without_the_project_is_said() -> None:
    error = refuse()
    assert error.reason == "unknown"
    assert "no project vllm" in str(error)


@pytest.mark.parametrize("version", ["", "newest", "../9.9.9", "9.9.9\n8", "9" * 5000])
def test_nonsense_is_no_version(index: Index, version: str) -> None:
    assert refuse(version).reason == "version"
    assert index.asked == []


@pytest.mark.usefixtures("index")
def test_unreachable_index_is_said_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:  # bound, but it does not listen
        deaf.bind(("127.0.0.1", 0))
        address = f"http://user:secret@127.0.0.1:{deaf.getsockname()[1]}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", address)
        error = refuse()
    assert error.reason == "network"
    assert "no connection" in str(error)
    assert "secret" not in str(error)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("address", ["nonsense", "http://[::1", "file:///nowhere", "http://"])
def test_impossible_address_is_said(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", address)
    error = refuse()
    assert error.reason == "network"
    assert "PIP_INDEX_URL" in str(error)


def test_silent_index_is_given_up(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvconform.conformance.releases.SILENCE", 0.1)
    index.add(NAME, pack(GOOD))
    index.resume = threading.Event()
    assert refuse().reason == "network"


@pytest.mark.parametrize(
    ("page_type", "status", "said"),
    [("text/html", 503, "503"), ("image/png", 200, "not a list of packages")],
)
def test_answer_that_is_no_page_is_said(index: Index, page_type: str, status: int, said: str) -> None:
    index.add(NAME, pack(GOOD))
    index.page_type, index.status = page_type, status
    error = refuse()
    assert error.reason == "network"
    assert said in str(error)


def test_listed_archive_that_is_gone_is_said(index: Index, root: Path) -> None:
    index.add(NAME, pack(GOOD))
    index.content.clear()
    error = refuse()
    assert error.reason == "network"
    assert "404" in str(error)
    assert nothing_kept(root)


def test_full_disk_in_the_download_is_said(index: Index, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(_client: object, _package: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    index.add(NAME, pack(GOOD))
    monkeypatch.setattr("pypi_simple.PyPISimple.download_package", fill)
    error = refuse()
    assert error.reason == "space"
    assert "No space left on device" in str(error)
    assert nothing_kept(root)


def test_full_disk_in_unpacking_is_said(index: Index, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    index.add(NAME, pack(GOOD))
    monkeypatch.setattr("tarfile.copyfileobj", fill)
    assert refuse().reason == "space"
    assert nothing_kept(root)


def test_cache_that_is_a_file_is_said(index: Index, tmp_path: Path) -> None:
    index.add(NAME, pack(GOOD))
    (tmp_path / "cache").write_text("")
    error = refuse()
    assert error.reason == "cache"
    assert "KVCONFORM_CACHE" in str(error)
    assert cached() == []


@pytest.mark.parametrize(
    ("directory", "marker"),
    [
        (".partial-1/unpacked/vllm-9.9.9", '{"version": "9.9.9", "sha256": ""}'),
        ("vllm-9.9.9", None),
        ("vllm-9.9.9", '{"version": "9.9'),
        ("vllm-9.9.9", '{"version": "9.9.8", "sha256": ""}'),
    ],
    ids=["partial", "no marker", "broken marker", "another marker"],
)
def test_leftover_is_no_release_and_is_replaced(
    index: Index, root: Path, directory: str, marker: str | None
) -> None:
    leftover = root / directory / "vllm/old.py"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("")
    if marker is not None:
        (root / directory / "kvconform.json").write_text(marker)
    assert cached() == []
    index.add(NAME, pack(GOOD))
    assert (release("9.9.9") / "vllm/__init__.py").exists()
    assert not leftover.exists()
    assert {p.name for p in root.iterdir()} == {".lock", "vllm-9.9.9"}


def test_directory_named_like_no_version_is_no_release(index: Index, root: Path) -> None:
    (root / "vllm-newest").mkdir(parents=True)
    (root / "vllm-newest/kvconform.json").write_text('{"version": "newest", "sha256": ""}')
    assert cached() == []
    index.add(NAME, pack(GOOD))
    assert release("9.9.9").name == "vllm-9.9.9"


def test_killed_fetch_leaves_nothing_that_matters(index: Index, root: Path) -> None:
    index.add(NAME, pack(GOOD))
    index.resume = threading.Event()
    with start_fetch() as process:
        wait_until(lambda: any(root.glob(".partial-*/*")))
        process.kill()
    assert any(root.glob(".partial-*/*"))
    assert cached() == []
    index.resume.set()
    assert (release("9.9.9") / "vllm/__init__.py").exists()
    assert {p.name for p in root.iterdir()} == {".lock", "vllm-9.9.9"}


def test_processes_that_fetch_at_once_share_one_download(index: Index, root: Path) -> None:
    index.add(NAME, pack(GOOD))
    index.resume = threading.Event()
    with start_fetch() as one, start_fetch() as other:
        wait_until(lambda: index.asked.count("/simple/vllm/") == 2)
        wait_until(lambda: index.archives_asked() > 0)
        time.sleep(0.2)  # for the second to ask too, if it does not wait as it should
        index.resume.set()
        printed = [process.communicate(timeout=DEADLINE)[0] for process in (one, other)]
    assert printed == [f"{root / 'vllm-9.9.9'}\n"] * 2
    assert index.archives_asked() == 1
    assert (root / "vllm-9.9.9/vllm/__init__.py").exists()


def test_threads_that_fetch_at_once_share_one_download(index: Index, root: Path) -> None:
    index.add(NAME, pack(GOOD))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(release, ["9.9.9"] * 4)) == [root / "vllm-9.9.9"] * 4
    assert index.archives_asked() == 1
    assert cached() == ["9.9.9"]


def test_import_and_cached_release_load_no_network_library(index: Index) -> None:
    index.add(NAME, pack(GOOD))
    release("9.9.9")
    program = (
        "import sys; from kvconform.conformance.releases import release; release('9.9.9'); "
        "print({'requests', 'pypi_simple', 'filelock', 'tarfile'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_error_survives_pickling() -> None:
    # Workers hand their errors to the process that started them.
    error = pickle.loads(pickle.dumps(ReleaseError("no such release", "unknown")))
    assert (str(error), error.reason) == ("no such release", "unknown")
