#!/bin/bash
# enter.sh FOLDER COMMAND...: run a command among fake hosts, a (10.77.0.11) and b (10.77.0.12), or those that FAKE_HOSTS
# names, which ssh reaches from head (10.77.0.1). Network, mounts, process ids and hostnames are this command's own: changes of the file system go
# to an overlay that is thrown away, and everything ends with the command. Only FOLDER is the same inside and outside.
# FAKE_HOSTS_ALSO names what is set up there, too: slurm.
# Exits with 77 where the system does not allow it. Needs root, Linux, iproute2 and openssh-server.
set -eu
export folder=$1
here=$(cd "$(dirname "$0")" && pwd)
export here
shift
unshare --mount true 2>/dev/null || { echo 'mounts are not permitted here' >&2; exit 77; }
mkdir -p "$folder/root"
exec unshare --net --uts --mount --pid --fork --kill-child=KILL bash -euc '
  mount --make-rprivate /
  root=$folder/root
  mount -t tmpfs none $root || exit 77
  mkdir $root/{upper,work,merged}
  mount -t overlay overlay -o lowerdir=/,upperdir=$root/upper,workdir=$root/work $root/merged || exit 77
  merged=$root/merged
  mount -t proc proc $merged/proc
  mount --rbind /dev $merged/dev
  mount --rbind /sys $merged/sys
  mount -t tmpfs none $merged/dev/shm
  mkdir -p "$merged$folder"
  mount --bind "$folder" "$merged$folder"
  exec chroot $merged bash -euc "cd \"\$1\"; shift; trap \"exit 77\" ERR; . \"\$here/hosts.sh\"; for more in \${FAKE_HOSTS_ALSO:-}; do . \"\$here/\$more.sh\"; done; trap - ERR; exec \"\$@\"" enter "$PWD" "$@"
' enter "$@"
