#!/usr/bin/env bash
# Installs the dependencies of zea: missing Debian packages, and a Python environment in .venv. Can be run again.
#   jobs/setup.sh [--gpu] [--tests] [--dataset] [--slurm]
#   --gpu      also NCCL, the CUDA libraries that torch lists, and nvcc if it is missing, to build for GPUs on a machine without one
#              (with a GPU they are installed by default)
#   --tests    also dependencies of tests: the full torch, transformers, clang-format and clang-tidy
#   --dataset  also Debian's Fashion-MNIST images, espeak-ng's voices, and strace, for tests
#   --slurm    also Slurm and munge, with which tests start a cluster (as root only)
# Only root can install packages; other users get a list of the missing ones. PYTHON=... chooses the interpreter (3.11 or newer).
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(g++ make ninja-build python3 python3-venv libopenmpi-dev openmpi-bin libhdf5-dev libtrilinos-kokkos-dev
  libtomlplusplus-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libxxhash-dev libgtest-dev libjpeg-dev
  libpng-dev libflac-dev)
venv=.venv
# How much of Python is wanted: 0 libtorch alone, 1 torch with the CUDA libraries it lists, 2 what the tests need too.
wanted_level=0

fail() {
  printf 'setup: %s\n' "$1" >&2
  exit 1
}

# stage NAME COMMAND...: one line with the seconds it took; what it said only where it fails. Inside, no failure ends a function by
# itself: each line says `|| return`.
stage() {
  local name=$1 log begin=$SECONDS
  shift
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    rm -f "$log"
    fail "$name failed"
  fi
  rm -f "$log"
  printf 'setup: %s, %d s\n' "$name" $((SECONDS - begin))
}

read_arguments() {
  local argument
  for argument in "$@"; do
    case $argument in
      --gpu) if [ "$wanted_level" -eq 0 ]; then wanted_level=1; fi ;;
      --tests) wanted_level=2 ;;
      --dataset) packages+=(dataset-fashion-mnist espeak-ng strace) ;;
      --slurm) if [ "$(id -u)" -eq 0 ]; then packages+=(slurmctld slurmd slurm-client munge); fi ;;
      *) fail "unknown argument $argument; allowed: --gpu, --tests, --dataset, --slurm" ;;
    esac
  done
  # A run on a GPU needs those CUDA libraries.
  if [ "$wanted_level" -eq 0 ] && nvidia-smi >/dev/null 2>&1; then wanted_level=1; fi
}

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  apt-get install -yq --no-install-recommends "$@"
}

setup_packages() {
  command -v dpkg-query >/dev/null || {
    printf 'setup: this is not Debian; see to these yourself: %s\n' "${packages[*]}"
    return
  }
  local missing
  mapfile -t missing < <(missing_packages)
  [ "${#missing[@]}" -gt 0 ] || return 0
  [ "$(id -u)" -eq 0 ] || fail "missing Debian packages; as root: apt-get install ${missing[*]}"
  stage "${#missing[@]} Debian packages" install_packages "${missing[@]}"
}

has_nvcc() { command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] || [ -n "${CUDACXX:-}" ]; }

is_new_enough() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

choose_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} /usr/bin/python3 python3; do
    if is_new_enough "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python of 3.11 or newer with venv; install python3-venv or set PYTHON"
}

# Scripts in an environment name its place.
is_made_here() { "$venv/bin/pip" --version 2>/dev/null | grep -qF "from $PWD/$venv/"; }

# install_python INTERPRETER: an environment that was moved is made anew.
install_python() {
  is_made_here || "$1" -m venv --clear "$venv" || return
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input install) compiler=()
  has_nvcc || compiler=(-r jobs/requirements-nvcc.txt)
  case $wanted_level in
    0)
      "${pip[@]}" --no-deps -r <(grep -E '^(torch|nvidia-)' jobs/requirements.txt) || return
      "${pip[@]}" -r <(grep -vE '^(torch|nvidia-)' jobs/requirements.txt)
      ;;
    1) "${pip[@]}" -r jobs/requirements.txt "${compiler[@]}" ;;
    2) "${pip[@]}" -r jobs/requirements.txt -r jobs/requirements-tests.txt "${compiler[@]}" ;;
  esac
}

setup_python() {
  local stamp=$venv/zea-stamp wanted found_level=0 found='' python
  wanted=$(cat jobs/requirements.txt jobs/requirements-{tests,nvcc}.txt <(pwd) | sha256sum | cut -d ' ' -f 1)
  if [ -f "$stamp" ]; then read -r found_level found <"$stamp"; fi
  if [ "$found" = "$wanted" ] && [ "$found_level" -ge "$wanted_level" ]; then return; fi
  if [ "$found_level" -gt "$wanted_level" ]; then wanted_level=$found_level; fi
  if [ -L "$venv" ] && [ -e "$venv/bin" ] && ! is_made_here; then
    fail "$venv is a link to $(readlink -f "$venv"), an environment that was made elsewhere, whose user would lose it; remove the link"
  fi
  python=$(choose_python)
  stage "Python environment" install_python "$python"
  printf '%d %s\n' "$wanted_level" "$wanted" >"$stamp"
}

read_arguments "$@"
setup_packages
setup_python
