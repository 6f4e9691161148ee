"""Makes the picture of a report, the transcript of a run and the table of strategies in README.md.

    python -m scripts.readme record       # tunes examples/gpt.py for two minutes, then keeps the records of the run
    python -m scripts.readme render       # renders picture and transcript from the records, with the code as it is now
    python -m scripts.readme strategies   # writes the table of strategies

Run `record` on a machine that does nothing else. `render` needs chromium, chromedriver, selenium and Pillow, but not
for a page that has not changed.
"""

import argparse
import sys

from autofit.reports import writing
from scripts.bench import files
from scripts.readme import picture, strategies, transcript
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


def write_strategies() -> None:
    """Writes the table of strategies.

    Raises:
        ValueError: README.md has no place for it.
    """
    readme = README.read_text(encoding="utf-8")
    files.write(README, transcript.inserted(readme, strategies.block(), strategies.BEGIN, strategies.END))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.readme", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("record", "render", "strategies"))
    try:
        match parser.parse_args().step:
            case "record":
                print(record().report.headline)
            case "render":
                render(Records.read())
            case _:
                write_strategies()
    except (UnusableRunError, picture.NoPictureError, ValueError) as error:
        print(f"scripts.readme: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
