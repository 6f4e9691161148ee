"""Gates: checks that a plan keeps the gradient of the baseline, made when the plan is about to become the answer."""
