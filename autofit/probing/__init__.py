"""One probe: run it, measure it, isolate it, classify its failure, put everything back."""
