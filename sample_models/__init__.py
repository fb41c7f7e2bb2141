"""Generator of the committed sample graphs; not part of the installed package."""
