#!/usr/bin/env bash
# Runs zea on an invalid deck and looks for each line of the deck's .expect file in the output.
#   check_deck.sh path/to/zea deck.toml
# Comments in the deck say more: "# arguments: ..." (default -n), "# exit: code" (default 2), "# deck: none" (no -i).
set -euo pipefail
zea=$1
deck=$2

setting() { sed -n "s/^# $1: //p" "$deck"; }
arguments=$(setting arguments)
wanted_code=$(setting exit)
read -ra words <<<"${arguments:--n}"
[ "$(setting deck)" = none ] || words+=(-i "$deck")

code=0
said=$("$zea" "${words[@]}" 2>&1) || code=$?

failed=0
if [ "$code" -ne "${wanted_code:-2}" ]; then
  echo "exit code is $code; ${wanted_code:-2} was expected"
  failed=1
fi
while IFS= read -r sentence; do
  grep -qF -- "$sentence" <<<"$said" || { echo "not said: $sentence"; failed=1; }
done <"${deck%.toml}.expect"
[ "$failed" -eq 0 ] || printf 'zea %s said:\n%s\n' "${words[*]}" "$said"
exit "$failed"
