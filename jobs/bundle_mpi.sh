#!/usr/bin/env bash
# Copies the Open MPI 4 that a program is linked to into a tree, from which it can be started anywhere. jobs/bundle.sh calls it:
# jobs/bundle_mpi.sh PROGRAM TREE. OpenSHMEM and components that need network libraries (UCX, libfabric, verbs, PSM) are left out:
# ranks communicate through shared memory and TCP. It prints the files that it copied.
set -euo pipefail
program=$1 tree=$2/libexec/zea/openmpi
left_out='_(ucx|ofi|openib|psm2?|monitoring|netlink|simulator|flux|jsm)\.so$|/mca_(atomic|memheap|scoll|spml|sshmem)_'
of_every_system='/(ld-linux[^/]*|lib(c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\+\+))\.so'

fail() { echo "bundle: $1; install the Open MPI 4 of the build whole, or leave it out: jobs/bundle.sh --no-mpi" >&2; exit 1; }
needed_by() { ldd "$@" | sed -n 's/.* => \(\/.*\) (.*/\1/p' | sort -u; }
folder() { ompi_info --parsable --path "$1" | sed -n "s/^path:$1://p" | head -n 1; }

library=$(needed_by "$program" | grep '/libmpi\.so\.') || fail "$program is not linked to an MPI of its own"
for tool in ompi_info orterun orted; do command -v "$tool" >/dev/null || fail "there is no $tool in the PATH"; done
found=$(ompi_info --version | sed -n 's/^Open MPI v//p')
[[ $found == 4.* ]] || fail "ompi_info in the PATH is of Open MPI '$found'"
told=$(needed_by "$(command -v ompi_info)" | grep '/libmpi\.so\.') || true
[ "$library" -ef "$told" ] || fail "the build has $library, the ompi_info in the PATH has '$told'"

components=$(find "$(folder pkglibdir)" -name 'mca_*.so' | grep -vE "$left_out") || true
started=("$(folder bindir)/orterun" "$(folder bindir)/orted")
# PMIx, by which ranks find each other, has components of its own, beside its library or Open MPI's.
pmix=$(needed_by $components | grep '/libpmix\.so\.' | xargs -r realpath)
pmix=$(dirname "${pmix:-$(folder libdir)/libpmix}")
pmix_components=$(find "$pmix/pmix" -name '*.so' 2>/dev/null) || true
of_mpi=$(needed_by "$program" | grep -E '/lib(mpi|open-|mca_)[^/]*\.so')
libraries=$({ echo "$of_mpi"; needed_by $of_mpi $components $pmix_components "${started[@]}"; } | grep -vE "$of_every_system" | sort -u)

mkdir -p "$tree"/{bin,libexec,lib/openmpi,lib/pmix,etc,share}
cp -L $libraries "$tree/lib/"
[ -z "$components" ] || cp $components "$tree/lib/openmpi/"
[ -z "$pmix_components" ] || cp $pmix_components "$tree/lib/pmix/"
cp "${started[@]}" "$tree/libexec/"
cp -r "$(folder pkgdatadir)" "$tree/share/openmpi"
cp "$(folder sysconfdir)"/openmpi-* "$tree/etc/"
for texts in "$pmix/../share/pmix" "$(folder datadir)/pmix"; do
  [ ! -d "$texts" ] || { cp -rn "$texts" "$tree/share/pmix"; break; }
done
from=jobs/bundled_mpi
cp "$from/environment.sh" "$tree/"
cp "$from/mpirun" "$tree/bin/mpirun"
cp "$from/mpirun" "$tree/bin/orted"
chmod 755 "$tree"/bin/*
ln -s ../libexec/zea/openmpi/bin/mpirun "$2/bin/zea-mpirun"
printf '%s\n' $libraries $components $pmix_components "${started[@]}"
