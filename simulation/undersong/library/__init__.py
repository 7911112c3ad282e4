"""The library for notebooks: its functions, their results, its tasks, and the checks of its arguments."""
