#!/bin/sh
# own_dev_shm.sh COMMAND...: runs a test where /dev/shm is its own, as large as the machine's and 1 GiB at least (which is
# a limit, not memory). Tests run side by side and check that nothing of theirs is left there; without this they find
# each other's files. Where the kernel forbids mount namespaces the command runs as it is.
set -eu

size_kib=$(df -k --output=size /dev/shm 2>/dev/null | tail -n 1 | tr -d ' ')
[ -n "$size_kib" ] || exec "$@"
[ "$size_kib" -ge 1048576 ] || size_kib=1048576
mount_own="mount -t tmpfs -o size=${size_kib}k,mode=1777 tmpfs /dev/shm"

if [ "$(id -u)" = 0 ]; then
  own="unshare --mount --propagation private"
  back="env"
else
  # Root of a user namespace may mount; the test is then the user that it would be without all this.
  own="unshare --user --map-root-user --mount --propagation private"
  back="unshare --user --map-user=$(id -u) --map-group=$(id -g)"
fi
if $own sh -c "$mount_own && $back true" >/dev/null 2>&1; then
  exec $own sh -c "$mount_own && exec $back \"\$@\"" sh "$@"
fi
exec "$@"
