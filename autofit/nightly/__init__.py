"""Nightly jobs: re-check the plans in use, notice a regression the first night, tune again when it pays."""
