#!/bin/sh
# in_dev_shm.sh SIZE COMMAND...: the command in a /dev/shm of that size; 77 where no mount namespace may be made.
set -eu

size=$1
shift
mount="mount -t tmpfs -o size=$size tmpfs /dev/shm"
own="unshare --user --map-root-user --mount sh -c"
$own "$mount" || exit 77
exec $own "$mount && exec \"\$@\"" sh "$@"
