#!/usr/bin/env bash
# Copies the licenses of third-party files in a tree into its share/doc/zea/licenses, one for each Debian package, and the license
# texts that these refer to. jobs/bundle.sh calls it: jobs/bundle_licenses.sh TREE < PATHS. It reports files that no package owns.
set -euo pipefail
texts=$1/share/doc/zea/licenses
mkdir -p "$texts"
mapfile -t names < <(sed 's:.*/::' | grep -v '^libzea_' | sort -u)
owners=$(dpkg -S "${names[@]/#/*/}" 2>/dev/null) || true  # lines of "package[:architecture]: path"; it fails where one has none
for name in "${names[@]}"; do
  package=$(sed -n "\|/$name\$|s/[:,].*//p" <<<"$owners" | head -n 1)
  if [ -f "/usr/share/doc/${package:-/none}/copyright" ]; then
    cp "/usr/share/doc/$package/copyright" "$texts/$package.txt"
  else
    echo "bundle: no licence of $name was found; before you pass the bundle on, add it to share/doc/zea/licenses" >&2
  fi
done
common=common-licenses
mkdir "$texts/$common"
for license in $(grep -rhoE "/usr/share/$common/[A-Za-z0-9.-]*[A-Za-z0-9]" "$texts" | sort -u); do
  [ ! -f "$license" ] || cp -L "$license" "$texts/$common/"
done
