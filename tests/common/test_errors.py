"""Errors that name several faults."""

from undersong_common.errors import ConfigurationError


def test_combined_error_lists_each_remedy_once_in_order() -> None:
    faults = [(f"fault {number}", f"remedy {number % 8}") for number in range(16)]
    error = ConfigurationError.together(faults)
    assert error.remedy == "; ".join(f"remedy {number}" for number in range(8))
