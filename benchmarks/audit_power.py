"""Prints how much too little noise a faulty build must draw before ``undersong audit`` is likely to notice it.

Printed for each number of audit runs: the smallest real epsilon of a build with too little Gaussian noise that the
audit's first attack refutes with more than even chance. ``--signal`` is a figure that an audit prints: how far a
planted record moves its score, as a share of what the promised epsilon allows.
"""

import argparse

import numpy as np

from undersong.auditing.attacks import CONFIDENCE, Detection
from undersong.auditing.verdict import _attack_power
from undersong_common.privacy.accounting import gaussian_epsilon, gaussian_mu

ATTACKERS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=4.0, help="promised")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--signal", type=float, default=1.0)
    parser.add_argument("--runs", type=int, nargs="+", default=[16, 32, 64, 100, 200, 400])
    arguments = parser.parse_args()
    mu = gaussian_mu(arguments.epsilon, arguments.delta)
    for runs in arguments.runs:
        detection = Detection(0, 0, 0, 0, (0.5,) * runs, alarm=(1.0 - CONFIDENCE) / ATTACKERS)
        share = _attack_power(
            detection,
            np.array([arguments.signal * mu]),
            lambda found: found.epsilon_if_gaussian(arguments.delta) > arguments.epsilon,
        )
        print(runs, "none" if share is None else f"{gaussian_epsilon(mu / share, arguments.delta):.3g}")


if __name__ == "__main__":
    main()
