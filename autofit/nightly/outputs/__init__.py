"""What a night found, for people and for programs: one module per format, each with `rendered(night, history)`."""
