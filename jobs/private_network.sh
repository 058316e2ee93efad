#!/usr/bin/env bash
# Runs a command in a private network that has only the loopback interface: nobody else, on this machine or another, can reach
# ports of its processes. For jobs on one node:
#   jobs/private_network.sh mpirun -n 4 zea -i deck.toml
set -euo pipefail
[ $# -gt 0 ] || { sed -n 2,4p "$0" >&2; exit 2; }
own=(unshare --net)
# Anybody but root needs a namespace of users, too.
if [ "$(id -u)" -ne 0 ]; then own+=(--user --map-current-user --keep-caps); fi
"${own[@]}" true 2>/dev/null || {
  echo "private_network: this machine lets nobody but root have a network of its own (unshare --user --net)" >&2
  exit 1
}
bring_up='import fcntl, socket, struct
set_flags, up_and_running = 0x8914, 0x41
fcntl.ioctl(socket.socket(), set_flags, struct.pack("16sh14x", b"lo", up_and_running))'
exec "${own[@]}" bash -c 'python3 -I -c "$0" && exec "$@"' "$bring_up" "$@"
