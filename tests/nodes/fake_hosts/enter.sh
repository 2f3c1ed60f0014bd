#!/bin/bash
# enter.sh FOLDER COMMAND...: run a command among two fake hosts, a (10.77.0.11) and b (10.77.0.12), which ssh reaches
# from head (10.77.0.1). Network, mounts, process ids and hostnames are this command's own: changes of the file system go
# to an overlay that is thrown away, and everything ends with the command. Only FOLDER is the same inside and outside.
# Exits with 77 where the system does not allow it. Needs root, Linux, iproute2 and openssh-server.
set -eu
folder=$1; shift
here=$(cd "$(dirname "$0")" && pwd)
upper=$(mktemp -d)
trap 'umount -l "$upper" 2>/dev/null || true; rm -rf "$upper"' EXIT
mount -t tmpfs none "$upper" 2>/dev/null || { echo 'mount is not permitted here' >&2; exit 77; }
mkdir "$upper"/{upper,work,merged}
export folder here upper
code=0
unshare --net --uts --mount --pid --fork --kill-child=KILL bash -euc '
  mount --make-rprivate /
  mount -t overlay overlay -o lowerdir=/,upperdir=$upper/upper,workdir=$upper/work $upper/merged || exit 77
  mount -t proc proc $upper/merged/proc
  mount --rbind /dev $upper/merged/dev
  mount --rbind /sys $upper/merged/sys
  mount -t tmpfs none $upper/merged/dev/shm
  mkdir -p "$upper/merged$folder"
  mount --bind "$folder" "$upper/merged$folder"
  mkdir -p "$upper/merged$here"
  exec chroot $upper/merged bash -euc "cd \"\$1\"; shift; . \"\$here/hosts.sh\"; exec \"\$@\"" enter "$PWD" "$@"
' enter "$@" || code=$?
exit $code
