"""Labelled texts of people: reading them, whose they are, and what two sets of them share."""
