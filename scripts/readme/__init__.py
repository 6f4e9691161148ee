"""What README.md shows of a run: a picture of its report and a transcript, both made from the records of a real run."""
