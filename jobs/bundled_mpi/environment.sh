# SPDX-License-Identifier: Apache-2.0
# Read with $mpi set to the folder that this lies in: tells the Open MPI there, and what it starts, where its parts are.
OPAL_PREFIX=$mpi
OPAL_BINDIR=$mpi/bin
OPAL_LIBDIR=$mpi/lib
OPAL_PKGLIBDIR=$mpi/lib/openmpi
OPAL_DATADIR=$mpi/share
OPAL_PKGDATADIR=$mpi/share/openmpi
OPAL_SYSCONFDIR=$mpi/etc
PMIX_PREFIX=$mpi
PMIX_LIBDIR=$mpi/lib
PMIX_PKGLIBDIR=$mpi/lib/pmix
PMIX_PKGDATADIR=$mpi/share/pmix
PMIX_SYSCONFDIR=$mpi/etc
LD_LIBRARY_PATH=$mpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OPAL_PREFIX OPAL_BINDIR OPAL_LIBDIR OPAL_PKGLIBDIR OPAL_DATADIR OPAL_PKGDATADIR OPAL_SYSCONFDIR
export PMIX_PREFIX PMIX_LIBDIR PMIX_PKGLIBDIR PMIX_PKGDATADIR PMIX_SYSCONFDIR LD_LIBRARY_PATH
