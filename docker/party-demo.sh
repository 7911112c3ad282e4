#!/bin/sh
# A hospital's part of the demonstration: keys, enrolment, data, budget, and the daemon.
# The files that people would hand to each other go through the folder $EXCHANGE.
set -eu

: "${UNDERSONG_PARTY_HOME:?}" "${EXCHANGE:?}" "${PARTY:?}" "${DATA:?}"
EPSILON="${EPSILON:-8}"
DELTA="${DELTA:-1e-4}"
INIT_OPTIONS="${INIT_OPTIONS:-}"

until [ -e "$EXCHANGE/$PARTY.package" ] && [ -e "$EXCHANGE/fingerprint" ]; do sleep 0.5; done

if [ ! -e "$UNDERSONG_PARTY_HOME/settings.json" ]; then
    # shellcheck disable=SC2086 # options are words
    undersong-party init "$PARTY" $INIT_OPTIONS
fi
echo "to be completed"
exit 1
