#!/usr/bin/env bash
# Runs the line "#   zea -n ..." that each deck in inputs/ has in its comment; each must print a plan.
#   check_inputs.sh path/to/zea source_folder
set -euo pipefail
zea=$1
cd "$2"
failed=0
for deck in inputs/*.toml; do
  line=$(sed -n 's/^# *zea \(-n .*\)$/\1/p' "$deck")
  if [[ $line != *"-i $deck"* ]]; then
    echo "$deck: no comment says how to plan it (#   zea -n --ranks N -i $deck)"
    failed=1
    continue
  fi
  words=()
  eval "words=($line)"
  if ! said=$("$zea" "${words[@]}" 2>&1) || ! grep -q '^plan: ' <<<"$said"; then
    printf 'zea %s said:\n%s\n' "$line" "$said"
    failed=1
  fi
done
exit "$failed"
