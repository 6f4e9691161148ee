"""Makes the picture of a report and the answer of a run in README.md.

    python -m scripts.readme record       # tunes examples/gpt.py for two minutes, then keeps the records of the run
    python -m scripts.readme render       # renders both from the records, with the code as it is now

Run `record` on a machine that does nothing else. `render` needs chromium, chromedriver, selenium and Pillow, but not
for a page that has not changed.
"""

import argparse
import sys

from autofit.reports import writing
from scripts.bench import files
from scripts.readme import picture, transcript
from scripts.readme.record import ROOT, UnusableRunError, record
from scripts.readme.records import Records

README = ROOT / "README.md"


def render(records: Records) -> None:
    """Renders the transcript, and the picture if its page has changed.

    Raises:
        NoPictureError: a program or package for the picture is missing.
        ValueError: README.md has no place for the transcript.
    """
    files.write(README, transcript.inserted(README.read_text(encoding="utf-8"), transcript.block(records)))
    page = writing.rendered(records.report, "html")
    there = picture.PICTURE.read_bytes() if picture.PICTURE.exists() else b""
    if not there or picture.digest_in(there) != picture.digest(page):
        picture.PICTURE.write_bytes(picture.take(page))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.readme", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("record", "render"))
    try:
        if parser.parse_args().step == "record":
            print(record().report.headline)
        else:
            render(Records.read())
    except (UnusableRunError, picture.NoPictureError, ValueError) as error:
        print(f"scripts.readme: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
