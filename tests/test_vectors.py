"""Test vectors: what another language can make of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from commands import environment, kvconform
from kvconform.conformance import vectors
from kvconform.conformance.selection import find_laws, find_pairs
from kvconform.conformance.values import read_arguments, to_wire
from kvconform.conformance.vectors import (
    OF_PYTHON,
    VectorsError,
    check_directory,
    make_vectors,
    schema,
    write_directory,
)
from kvconform.reference.interface import Refused
from kvconform.reference.plain import Plain

LAWS = "page/*,merge/*,uniform/*,bound/exact-at-scale,plan/one-stride"
KINDS = "mla_attention,uniform_type,mamba,-"


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The vectors of some laws."""
    return make_vectors(find_pairs(LAWS, KINDS), version="1", any_language=False)


def laws_in(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(files[one["path"]]) for one in json.loads(files["index.json"])["laws"]]


def test_every_file_is_as_the_schema_says(files: dict[str, bytes]) -> None:
    assert json.loads(files["schema.json"]) == json.loads(json.dumps(schema()))
    validator = jsonschema.Draft202012Validator(schema())
    for law in laws_in(files):
        validator.validate(law)
    wrong = laws_in(files)[0]
    wrong["vectors"][0]["calls"][0]["arguments"]["spec"]["block_size"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(wrong)


def test_the_index_lists_what_is_there(files: dict[str, bytes]) -> None:
    index = json.loads(files["index.json"])
    assert (index["kvconform_vectors"], index["kvconform"]) == (1, "1")
    assert sorted(index["files"]) == sorted(set(files) - {"index.json"})
    assert {one["law"]: one["vectors"] for one in index["laws"]} == {
        law["law"]: len(law["vectors"]) for law in laws_in(files)
    }


def test_a_law_says_what_goes_wrong_for_a_user(files: dict[str, bytes]) -> None:
    told = {law["law"]: law for law in laws_in(files)}
    (law,) = find_laws("page/padded-covers-unpadded")
    assert told[law.id]["must_hold"] == law.sentence
    assert told[law.id]["why"] in law.explanation
    assert told[law.id]["why"]
    assert told[law.id]["reports"] == list(law.reports)


def test_the_answers_are_those_of_the_reference(files: dict[str, bytes]) -> None:
    answered = refused = 0
    for law in laws_in(files):
        for vector in law["vectors"]:
            reference = Plain()
            for call in vector["calls"]:
                ask = getattr(reference, call["operation"])
                try:
                    answer = ask(**read_arguments(call["operation"], call["arguments"]))
                except Refused:
                    assert call["refuse"] is True
                    refused += 1
                else:
                    assert to_wire(answer) == call["answer"], vector["id"]
                    answered += 1
    assert answered > 100
    assert refused > 3


def test_ids_are_unique_and_say_law_and_kind(files: dict[str, bytes]) -> None:
    ids = []
    for law in laws_in(files):
        for vector in law["vectors"]:
            ids.append(vector["id"])
            between = [] if vector["kind"] is None else [vector["kind"]]
            assert vector["id"].startswith("/".join((law["law"], *between, "")))
    assert len(ids) == len(set(ids))


def test_integers_that_a_double_would_round_are_strings(files: dict[str, bytes]) -> None:
    def integers(value: Any) -> list[int]:
        if isinstance(value, dict):
            return [number for part in value.values() for number in integers(part)]
        if isinstance(value, list):
            return [number for part in value for number in integers(part)]
        return [value] if type(value) is int else []

    (law,) = (law for law in laws_in(files) if law["law"] == "page/exact-at-scale")
    assert '"9' in json.dumps(law) or '"1' in json.dumps(law)
    for one in laws_in(files):
        assert all(abs(number) < 1 << 53 for number in integers(one["vectors"]))


def test_a_case_can_be_replayed(files: dict[str, bytes], tmp_path: Path) -> None:
    (law,) = (law for law in laws_in(files) if law["law"] == "page/padding-is-exact")
    case = law["vectors"][0]["case"]
    assert kvconform("replay", "reference", case, cwd=tmp_path).returncode == 0
    assert kvconform("replay", "python:faulty:Smaller", case, cwd=tmp_path).returncode == 1


def test_the_same_version_writes_the_same_bytes(tmp_path: Path) -> None:
    selected = (
        "--laws",
        "page/aligned,plan/one-stride,uniform/registered-base",
        "--implementation-independent",
    )
    for seed in ("1", "2"):
        subprocess.run(
            ["kvconform", "vectors", seed, *selected],
            cwd=tmp_path,
            env=environment(PYTHONHASHSEED=seed),
            check=True,
            capture_output=True,
        )
    assert subprocess.run(["diff", "-r", "1", "2"], cwd=tmp_path, check=False).returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]
    assert (tmp_path / "1" / "page" / "aligned.json").exists()


def test_what_only_python_can_be_asked_may_be_left_out() -> None:
    pairs = find_pairs("merge/*,uniform/*", "mla_attention,-")
    for any_language in (False, True):
        made = make_vectors(pairs, version="1", any_language=any_language)
        asked = {
            call["operation"] for law in laws_in(made) for one in law["vectors"] for call in one["calls"]
        }
        assert bool(asked & set(OF_PYTHON)) is not any_language
        assert "merge" in asked


def test_old_vectors_are_replaced_and_nothing_else(files: dict[str, bytes], tmp_path: Path) -> None:
    place = tmp_path / "vectors"
    write_directory(place, files)
    few = make_vectors(find_pairs("page/aligned"), version="1", any_language=False)
    check_directory(place)
    write_directory(place, few)
    found = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert found == few
    (place / "mine.txt").write_text("mine")
    with pytest.raises(VectorsError, match=r"holds mine.txt, which is none of the vectors"):
        check_directory(place)


def test_what_was_interrupted_can_be_written_again(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "vectors"
    write_directory(place, make_vectors(find_pairs("resize/composes"), version="0", any_language=False))
    write = vectors._write
    written = []

    def stop(path: Path, content: bytes) -> None:
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        written.append(path)
        write(path, content)

    monkeypatch.setattr(vectors, "_write", stop)
    with pytest.raises(OSError, match="No space left"):
        write_directory(place, files)
    assert [path.exists() for path in written] == [True] * 4
    monkeypatch.undo()
    check_directory(place)
    write_directory(place, files)
    assert json.loads((place / "index.json").read_bytes()) == json.loads(files["index.json"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["full"], "full: holds mine.txt, which is none of the vectors"),
        (["full/mine.txt"], "full/mine.txt: is no directory"),
        (["no/such"], "no/such: there is no directory no"),
        (["new", "--laws", "x"], "no law matches 'x'"),
        (["new", "--kinds", "x"], "unknown kind 'x'"),
    ],
)
def test_bad_input_is_one_line_and_2(tmp_path: Path, arguments: list[str], why: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    ended = kvconform("vectors", *arguments, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert why in line
    assert sorted(os.listdir(tmp_path)) == ["full"]
    assert os.listdir(tmp_path / "full") == ["mine.txt"]
