"""Workers: processes that run plans for searches on other machines, which share a database."""
