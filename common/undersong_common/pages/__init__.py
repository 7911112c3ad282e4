"""Shared parts of the operator's console and the hospital's page: accounts, safe templates, the live stream.

Needs the extra ``console`` or ``page``. A page reads and changes the files of its program's folder. It answers no
party, so that a fault of a page stops no run.
"""
