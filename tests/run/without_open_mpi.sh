#!/usr/bin/env bash
# Runs a command where no Open MPI is installed, nor what Debian installs with it: without_open_mpi.sh COMMAND...
# It needs mounts of its own, and overlays; Skipped (77) where those are not allowed.
set -euo pipefail
if [ -z "${ZEA_MOUNTS_OF_ITS_OWN:-}" ]; then
  unshare --mount true 2>/dev/null || exit 77
  ZEA_MOUNTS_OF_ITS_OWN=1 exec unshare --mount "$0" "$@"
fi
layer=$(mktemp -d)
mount -t tmpfs tmpfs "$layer" || exit 77
mkdir "$layer/usr" "$layer/work" "$layer/etc"
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$layer/usr,workdir=$layer/work" /usr || exit 77
[ ! -d /etc/openmpi ] || mount --bind "$layer/etc" /etc/openmpi
programs='mpi(run|exec)[^/]*|orte[^/]*|ompi[^/]*|openmpi|pmix2?'
libraries='lib(mpi|open-|mca_|pmix|munge|hwloc|event)[^/]*[.]so[^/]*'
find /usr/bin /usr/lib /usr/share /usr/local -maxdepth 2 -regextype egrep \
  -regex ".*/($programs|$libraries)" -prune -exec rm -r {} +
for gone in mpirun orted ompi_info; do
  ! command -v "$gone" >/dev/null || { echo "without_open_mpi: $(command -v "$gone") is still there" >&2; exit 1; }
done
unset ZEA_MOUNTS_OF_ITS_OWN LD_LIBRARY_PATH OPAL_PREFIX "${!OMPI_@}" "${!PMIX_@}"
exec "$@"
