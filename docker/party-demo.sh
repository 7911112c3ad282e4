#!/bin/sh
# A hospital's part of the demonstration: keys, enrolment, data, budget, policy, and the daemon.
# The files that people would hand to each other go through the folder $EXCHANGE.
set -eu

: "${UNDERSONG_PARTY_HOME:?}" "${EXCHANGE:?}" "${PARTY:?}" "${DATA:?}" "${CACHE:?}"
EPSILON="${EPSILON:-8}"
DELTA="${DELTA:-1e-4}"
INIT_OPTIONS="${INIT_OPTIONS:-}"
RUN_OPTIONS="${RUN_OPTIONS:-}"

until [ -e "$EXCHANGE/$PARTY.package" ] && [ -e "$EXCHANGE/fingerprint" ]; do sleep 0.5; done

if [ ! -e "$UNDERSONG_PARTY_HOME/keys/tls.pem" ]; then
    if [ ! -e "$UNDERSONG_PARTY_HOME/settings.json" ]; then
        # shellcheck disable=SC2086 # options are words
        undersong-party init "$PARTY" $INIT_OPTIONS
        undersong-party data add "$DATA" --text-field text --label-field label --user-field patient --cache-dir "$CACHE"
        undersong-party budget set --epsilon "$EPSILON" --delta "$DELTA"
        # Nobody sits here to approve a run; a hospital leaves the default, which asks a person each time.
        undersong-party policy set --question all --approval standing
    fi
    if [ ! -e "$EXCHANGE/$PARTY.request" ]; then
        said=$(undersong-party enroll "$EXCHANGE/$PARTY.package" --fingerprint "$(cat "$EXCHANGE/fingerprint")" \
            --request-out "$UNDERSONG_PARTY_HOME/request")
        echo "$said"
        # In life the hospital reads this to the operator over the telephone, and sends only the request.
        echo "$said" | sed -n "s/^the operator compares this party's fingerprint: //p" > "$EXCHANGE/$PARTY.fingerprint"
        cp "$UNDERSONG_PARTY_HOME/request" "$EXCHANGE/.$PARTY.request"
        mv "$EXCHANGE/.$PARTY.request" "$EXCHANGE/$PARTY.request"
    fi
    until [ -e "$EXCHANGE/$PARTY.grant" ]; do sleep 0.5; done
    undersong-party enroll --grant "$EXCHANGE/$PARTY.grant"
fi
# shellcheck disable=SC2086 # options are words
exec undersong-party run $RUN_OPTIONS
