"""What an operator can do, as plain functions with typed results: no command line, no HTTP, nothing is printed.

Every function that concerns a coordinator takes its folder. Results are frozen values with ``to_json``.
"""
