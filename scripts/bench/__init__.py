"""Benchmarks: every figure in the README and in `results/README.md` comes from one of these commands.

Run them from the root of the checkout, in an environment that has autofit. Each has `--help`, prints a summary as its
last line, writes its figures with `--json FILE`, and exits with 1 where a required figure was missed.

    python -m scripts.bench.search                   regret and probes of the searchers on recorded and synthetic tables
    python -m scripts.bench.search.record_table      records such a table on this device
    python -m scripts.bench.claims                   how often the true gain lies in the interval that a search claims
    python -m scripts.bench.gain                     what tuning brings on the four examples
    python -m scripts.bench.packing                  what packing alone gains on texts of varying lengths
    python -m scripts.bench.compilation              a plan with compilation searched, against those found by hand
    python -m scripts.bench.compile_in_time          whether searches that compile end within their time budget
    python -m scripts.bench.doctor                   false findings of the doctor on trainings of many kinds
    python -m scripts.bench.doctor.overhead          time of a step that the doctor watches
    python -m scripts.bench.overhead                 cost of `TrainStep`, of the guard and of `import autofit`
    python -m scripts.bench.splitting                cost of `prepare(on_oom="split")` while nothing runs out of memory
    python -m scripts.bench.tune_again               time of tuning an unchanged workload again with its study
    python -m scripts.bench.nightly.simulated_years  false alarms and missed changes of the rule of nightly jobs
    python -m scripts.bench.peers                    autofit beside other finders of batch sizes
    python -m scripts.bench.memory.host_estimates    memory estimates against measured peaks on a CPU
    python -m scripts.bench.memory.estimates         memory estimates against the CUDA allocator
    python -m scripts.bench.memory.vocabulary        what the chunked loss brings to a vocabulary of 50,000
    python -m scripts.bench.memory.operators         operators whose memory a trace gets wrong

`scripts/gpu_suite` runs what needs a real GPU: the stages in `gpu/`.
"""
