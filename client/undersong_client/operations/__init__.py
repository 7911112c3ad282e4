"""Actions of a hospital's people, as plain functions with typed results. They use no command line and no HTTP.

Every function takes the party's folder. Results are frozen values with ``to_json``. They are for these people only and
must not leave the building.
"""
