"""A bench on several ranks: one leads the search, and the others follow."""
