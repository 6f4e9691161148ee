"""README.md's picture and transcript are what today's code makes of the records; a change of either fails these."""

import struct
import zlib
from pathlib import Path

import pytest

from autofit.reports import writing
from scripts.readme import picture, transcript
from scripts.readme.__main__ import README
from scripts.readme.record import ROOT, TUNE
from scripts.readme.records import FOLDER, Records, keep

AGAIN = "run python -m scripts.readme render"


@pytest.fixture(scope="module")
def records() -> Records:
    return Records.read()


def test_the_transcript_is_current(records: Records) -> None:
    readme = README.read_text(encoding="utf-8")
    assert transcript.inserted(readme, transcript.block(records)) == readme, AGAIN


def test_the_picture_is_of_the_page_as_it_is_rendered_today(records: Records) -> None:
    page = writing.rendered(records.report, "html")
    assert picture.digest_in(picture.PICTURE.read_bytes()) == picture.digest(page), AGAIN
    assert picture.digest(page) != picture.digest(page + " ")


def test_the_picture_is_wide_enough_small_enough_and_shown() -> None:
    found = picture.PICTURE.read_bytes()
    assert picture.size_of(found)[0] == picture.WIDTH * picture.SCALE == 1600
    assert len(found) <= picture.MOST_BYTES
    assert str(picture.PICTURE.relative_to(ROOT)) in README.read_text(encoding="utf-8")


def test_the_records_are_of_one_run_of_the_demo(records: Records) -> None:
    demo = (ROOT / "scripts" / "demo").read_text(encoding="utf-8").replace("\\\n", "")
    assert TUNE in " ".join(demo.split())
    assert records.report.command == records.answer.command == f"autofit {TUNE}"
    recommended = records.report.recommended
    assert recommended is not None
    assert recommended.values == records.answer.plan.values
    proofs = [kept.trial for kept in records.events if kept.kind == "proof" and kept.trial]
    assert proofs[-1].plan == records.answer.plan
    measured = sum(kept.trial is not None and kept.trial.outcome.measured for kept in records.events)
    assert measured <= records.answer.counts["measured"]


def test_the_records_can_be_copied_and_name_no_folder_of_a_machine(records: Records, tmp_path: Path) -> None:
    keep(FOLDER, tmp_path / "copy")
    assert Records.read(tmp_path / "copy") == records
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8")
        assert [place for place in ("/tmp/", "/home/", "/root/", "/work/") if place in text] == []


@pytest.mark.parametrize(
    "readme", ["no markers", transcript.BEGIN, transcript.END, 2 * (transcript.BEGIN + transcript.END)]
)
def test_a_readme_without_one_place_for_the_transcript_is_refused(readme: str) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        transcript.inserted(readme, "text")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_a_digest_is_read_from_the_picture_that_it_was_written_to() -> None:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 2, 8, 0, 0, 0, 0))
    bare = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0\0\0\0" * 2)) + chunk(b"IEND", b"")
    marked = picture.marked(bare, "1234")
    assert (picture.digest_in(bare), picture.digest_in(marked)) == ("", "1234")
    assert picture.size_of(marked) == (3, 2)
    assert marked.replace(chunk(b"tEXt", picture.KEYWORD + b"\x001234"), b"") == bare
    with pytest.raises(ValueError, match="signature of a PNG"):
        picture.digest_in(b"<svg/>")
