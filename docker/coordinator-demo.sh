#!/bin/sh
# The operator's part of the demonstration, from an empty folder to a verified data set:
# make a coordinator, invite every party, sign what comes back, serve, run, export, verify.
# The files that people would hand to each other go through the folder $EXCHANGE.
set -eu

: "${UNDERSONG_HOME:?}" "${EXCHANGE:?}" "${ADDRESS:?}" "${PARTIES:?}" "${TASK:?}" "${OUT:?}"
BIND="${BIND:-0.0.0.0:7443}"
METRICS="${METRICS:-127.0.0.1:9464}"
PLAN_OPTIONS="${PLAN_OPTIONS:-}"

# A second `docker compose up` over a finished demonstration checks what is there.
if [ -e "$OUT/manifest.json" ]; then
    exec undersong verify "$OUT" --fingerprint "$(cat "$EXCHANGE/fingerprint")"
fi
if [ ! -e "$UNDERSONG_HOME/coordinator.json" ]; then
    undersong coordinator init --address "$ADDRESS" --bind "$BIND" --metrics "$METRICS" \
        --operator "The demonstration" --contact "nobody@demo.invalid: invented records"
fi
for party in $PARTIES; do
    if ! undersong parties --json | grep -q "\"name\": \"$party\""; then
        undersong invite "$party" --out "$EXCHANGE/$party.package"
    fi
done
# In life this line is read over the telephone, never sent along with the packages.
undersong coordinator show | sed -n 's/^fingerprint: //p' > "$EXCHANGE/.fingerprint"
mv "$EXCHANGE/.fingerprint" "$EXCHANGE/fingerprint"
chmod 0644 "$EXCHANGE"/*.package

undersong coordinator serve &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server"' EXIT

for party in $PARTIES; do
    until [ -e "$EXCHANGE/$party.request" ]; do sleep 0.5; done
    if [ ! -e "$EXCHANGE/$party.grant" ]; then
        # In life the hospital has read its fingerprint out over the telephone; here it comes by the same folder.
        undersong sign "$EXCHANGE/$party.request" --fingerprint "$(cat "$EXCHANGE/$party.fingerprint")" \
            --out "$UNDERSONG_HOME/$party.grant"
        cp "$UNDERSONG_HOME/$party.grant" "$EXCHANGE/.$party.grant"
        chmod 0644 "$EXCHANGE/.$party.grant"
        mv "$EXCHANGE/.$party.grant" "$EXCHANGE/$party.grant"
    fi
done

# shellcheck disable=SC2086 # options are words
[ -e "$UNDERSONG_HOME/runs/demo" ] || undersong run plan "$TASK" --name demo $PLAN_OPTIONS
undersong run start demo
undersong run watch demo
undersong export demo --out "$OUT"
# Who receives the data set has the fingerprint from one of the hospitals.
undersong verify "$OUT" --fingerprint "$(cat "$EXCHANGE/fingerprint")"
