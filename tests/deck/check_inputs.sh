#!/usr/bin/env bash
# Runs the lines "#   zea -n ..." in the comment of each deck in inputs/ (at least one). Each must print a plan. If the
# comment says "# which fits N GB a rank", no rank's peak may exceed N GB, and the comment must list the modules of each
# rank in the first plan, in lines "#   rank R: module(axis=coordinate ...) ...", without coordinates that are 0.
#   check_inputs.sh path/to/zea source_folder
set -euo pipefail
zea=$1
cd "$2"
failed=0
while IFS=$'\t' read -r number deck line; do
  if [[ $line != *"-i $deck"* ]]; then
    echo "$deck: no comment says how to plan it (#   zea -n --ranks N -i $deck)"
    failed=1
    continue
  fi
  # The line is split here, not by eval: the text of a comment must not be run. A word is plain, or ends with the empty
  # text of TOML.
  read -ra words <<<"$line"
  for word in "${words[@]}"; do
    if ! [[ $word =~ ^[A-Za-z0-9_./=-]+(\'\"\"\')?$ ]]; then
      echo "$deck: its comment has $word; allowed here: letters, digits, _ . / = - and '\"\"' at the end"
      failed=1
      continue 2
    fi
  done
  words=("${words[@]//\'/}")
  if ! said=$("$zea" "${words[@]}" 2>&1) || ! grep -q '^plan: ' <<<"$said"; then
    printf 'zea %s said:\n%s\n' "$line" "$said"
    failed=1
    continue
  fi
  gigabytes=$(sed -n 's/^# which fits \([0-9]*\) GB a rank.*/\1/p' "$deck")
  peak=$(sed -n 's/.*; peak \([0-9.]*\) MiB.*/\1/p' <<<"$said" | sort -g | tail -1)
  if [ -n "$gigabytes" ] && ! awk "BEGIN { exit !(${peak:-1e30} * 1048576 <= $gigabytes * 1e9) }"; then
    echo "$deck: the peak of its plan is $peak MiB, above $gigabytes GB"
    failed=1
  fi
  ranks=$(sed -n 's/^  \(rank [0-9]*:\) */\1 /p' <<<"$said" | sed 's/[a-z_]*=0 *//g; s/ *)/)/g; s/  */ /g')
  expected=$(sed -n 's/^#   \(rank [0-9]*: .*\)/\1/p' "$deck")
  if [ -n "$gigabytes" ] && [ "$number" = 1 ] && ! diff <(echo "$expected") <(echo "$ranks"); then
    echo "$deck: its plan has modules on other ranks (>) than its comment says (<)"
    failed=1
  fi
done < <(
  for deck in inputs/*.toml; do
    lines=$(sed -n 's/^# *zea \(-n .*\)$/\1/p' "$deck")
    awk -v deck="$deck" '{ print NR "\t" deck "\t" $0 }' <<<"$lines"
  done
)
exit "$failed"
