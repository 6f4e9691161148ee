"""The rule of nightly jobs on simulated years: false alarms, and how soon a planted change is found."""
