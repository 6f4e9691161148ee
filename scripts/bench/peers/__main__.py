"""`python -m scripts.bench.peers` runs `compare.main`."""

from scripts.bench.peers.compare import main

main()
