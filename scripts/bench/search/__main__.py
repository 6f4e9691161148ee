"""`python -m scripts.bench.search` runs `scores.main`."""

from scripts.bench.search.scores import main

main()
