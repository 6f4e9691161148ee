"""Inside the trainers of other libraries: a plan in their arguments, and tuning where the training is defined."""
