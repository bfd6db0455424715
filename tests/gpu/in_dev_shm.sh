#!/bin/sh
# in_dev_shm.sh SIZE COMMAND...: runs the command in a /dev/shm of that size. Exit code 77: no mount
# namespace can be made here.
set -eu

size=$1
shift
mount="mount -t tmpfs -o size=$size tmpfs /dev/shm"
own="unshare --user --map-root-user --mount sh -c"
$own "$mount" || exit 77
exec $own "$mount && exec \"\$@\"" sh "$@"
