#!/bin/sh
# The first process of a stock kernel in QEMU, in its initrd: makes the machine's file system the root
# and continues with init.sh. The kernel's command line sets MODULES, a directory of the machine, NFT,
# a program of the machine, and UML_INIT.
b=/bin/busybox
for module in $($b cat /modules/order 2>/dev/null); do $b insmod "/modules/$module"; done
$b mount -t virtiofs -o ro root /new
$b mount --bind "/new$MODULES" /new/lib/modules
$b mount --bind "/new$NFT" /new/usr/sbin/nft
$b mount -t devtmpfs dev /new/dev
exec $b switch_root /new /bin/sh "$UML_INIT" "$@"
