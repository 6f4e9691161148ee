"""`python -m scripts.bench.memory.operators` runs `meter.main`."""

import sys

from scripts.bench.memory.operators.meter import main

sys.exit(main())
