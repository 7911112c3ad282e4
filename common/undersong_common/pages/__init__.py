"""Shared parts of the operator's console and the hospital's page: accounts, safe templates, the live stream.

Needs the extra ``console`` or ``page``. A page knows the files of its home and the operations on them; it serves no
party, so that a fault of a page stops nobody.
"""
