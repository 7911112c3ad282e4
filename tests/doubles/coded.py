"""Expects an error by its class and stable code, whatever its sentence says."""

import pytest

from undersong_common.errors import UndersongError


def raises(
    kind: type[UndersongError] | tuple[type[UndersongError], ...], code: str
) -> pytest.RaisesExc[UndersongError]:
    """``pytest.raises`` for an error of this class, or of one of these, with this ``code``."""
    return pytest.raises(kind, check=lambda error: error.code == code)
