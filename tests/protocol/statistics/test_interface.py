"""What a statistic must state before it can be planned: above all whether a subsample of units may be taken of it."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from tests.doubles.coded import raises
from tests.doubles.pace import slow_after
from undersong_common.errors import ConfigurationError, InternalError, PrivacyRefusal
from undersong_protocol import statistics
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import LabelHistogram, PublicFacts, Rows, Sensitivity, Statistic, interface
from undersong_protocol.statistics.examples import Chooser
from undersong_protocol.statistics.teacher_votes import TeacherVotes

QUORUM = Quorum(parties=1, threshold=1, tolerated_dropouts=0, colluders=0)


class _Body:
    """All of a statistic but what it states."""

    @property
    def dimension(self):
        return 1

    @property
    def sensitivity(self):
        return Sensitivity(1.0, 1.0, 1.0)

    @property
    def base_scale(self):
        return 256

    @classmethod
    def example(cls, choose, facts):
        return cls(), ()

    def rows(self, records, public, memory):
        return Rows(np.ones((len(records), 1)), records.units)


def test_statistic_class_without_attribute_whole_cannot_be_defined():
    with raises(InternalError, "whole-not-stated"):
        type("Forgetful", (_Body, Statistic), {"name": "forgetful"})


@pytest.mark.parametrize("stated", [{}, {"consent": ""}, {"consent": 3}])
def test_statistic_class_without_a_consent_sentence_cannot_be_defined(stated):
    with pytest.raises(InternalError):
        type("Silent", (_Body, Statistic), {"name": "silent", "whole": False, **stated})


@pytest.mark.parametrize("stated", [None, 0, "no"])
def test_attribute_whole_of_a_statistic_must_be_true_or_false(stated):
    with raises(InternalError, "whole-not-stated"):
        type("Vague", (_Body, Statistic), {"name": "vague", "whole": stated})


def test_subclass_of_a_statistic_must_state_attribute_whole_itself():
    with raises(InternalError, "whole-not-stated"):
        type("Inheriting", (LabelHistogram,), {"name": "inheriting"})


def test_statistic_class_without_sensitivity_cannot_be_instantiated():
    class Boundless(Statistic):
        name: ClassVar[str] = "boundless"
        whole: ClassVar[bool] = False
        consent: ClassVar[str] = "nothing"

    with pytest.raises(TypeError, match="sensitivity"):
        Boundless()


def test_class_that_is_no_statistic_cannot_be_registered():
    @dataclasses.dataclass(frozen=True)
    class Alike(_Body):
        name: ClassVar[str] = "alike"
        whole: ClassVar[bool] = False

    with raises(InternalError, "no-statistic"):
        interface.register(Alike)
    assert "alike" not in statistics.names()


def test_statistic_with_an_unreadable_parameter_type_is_not_registered():
    """Not first when a plan asks for it, which would end as an internal error at every party."""

    class Guarded(LabelHistogram):
        name: ClassVar[str] = "guarded"
        whole: ClassVar[bool] = False
        consent: ClassVar[str] = "nothing"
        lengths: "OnlyForTypeCheckers" = ()  # noqa: F821

    with raises(ConfigurationError, "unreadable-type"):
        statistics.register_foreign("guarded", dataclasses.dataclass(frozen=True)(Guarded), "0" * 64)
    assert "guarded" not in statistics.names()


def test_party_check_of_a_statistic_passes_by_default():
    LabelHistogram(2).check_party("")


@pytest.mark.slow
@pytest.mark.parametrize("statistic", slow_after([TeacherVotes(queries=4, teachers=2), LabelHistogram(2)], 1))
def test_subsampling_is_refused_only_for_statistics_of_whole_parties(statistic):
    request = SumRequest("one", statistic, sampling_rate=0.5)
    plan = plan_sums([request], Privacy(1.0, 1e-5), QUORUM)
    if not statistic.whole:
        plan.verify()
        return
    with pytest.raises(PrivacyRefusal, match="cannot be taken of a subsample"):
        plan.verify()


@pytest.mark.parametrize("name", statistics.names())
def test_every_parameter_of_a_statistic_is_checked_when_it_is_made(name):
    statistic, _ = statistics.known(name).example(Chooser(lambda below: below - 1), PublicFacts(8, 3))
    planned = statistics.parameters(statistic)
    for parameter, value in planned.items():
        wrong = ["7", None, {}, -1, 2**60, float("nan"), *([] if isinstance(value, float) else [1.5])]
        for each in wrong:
            with pytest.raises(ConfigurationError):
                statistics.build(name, {**planned, parameter: each})
        if type(value) is int:
            with raises(ConfigurationError, "number-out-of-range"):
                statistics.build(name, {**planned, parameter: True})
