#!/bin/sh
# own_dev_shm.sh COMMAND...: runs a test with a separate /dev/shm, as large as the machine's but at
# least 1 GiB (a limit, which takes no memory). Tests run side by side and check that they leave
# nothing there; in a shared /dev/shm they would find each other's files. If the kernel forbids
# mount namespaces, the command runs without one.
set -eu

size_kib=$(df -k --output=size /dev/shm 2>/dev/null | tail -n 1 | tr -d ' ')
[ -n "$size_kib" ] || exec "$@"
[ "$size_kib" -ge 1048576 ] || size_kib=1048576
mount_own="mount -t tmpfs -o size=${size_kib}k,mode=1777 tmpfs /dev/shm"

if [ "$(id -u)" = 0 ]; then
  own="unshare --mount --propagation private"
  back="env"
else
  # Only root of a user namespace may mount. The test itself then runs as the user that called this
  # script.
  own="unshare --user --map-root-user --mount --propagation private"
  back="unshare --user --map-user=$(id -u) --map-group=$(id -g)"
fi
if $own sh -c "$mount_own && $back true" >/dev/null 2>&1; then
  exec $own sh -c "$mount_own && exec $back \"\$@\"" sh "$@"
fi
exec "$@"
