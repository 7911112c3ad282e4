"""Five hospitals, their triage notes, and three public corpora: all of it written by a seeded program."""
