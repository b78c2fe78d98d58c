#!/bin/sh
# Starts QEMU with the file systems that qemu-init.sh and init.sh mount.
# Usage: qemu.sh DIRECTORY QEMU-ARGUMENT...; DIRECTORY is the kernel's, writable inside.
set -eu
directory=$1
shift
for program in /usr/libexec/virtiofsd /usr/lib/qemu/virtiofsd; do
  [ -x "$program" ] && break
done

share() {
  "$program" "--socket-path=$directory/$1.socket" -o "source=$2" -o "cache=$3" -o sandbox=chroot -f \
    >"$directory/$1.log" 2>&1 &
  # QEMU would not wait for the socket.
  while ! [ -S "$directory/$1.socket" ]; do
    kill -0 $! || exit
    sleep 0.02
  done
}
share root / always
share host "$directory" none
# A newer QEMU that is not installed: scripts/kernels.sh.
unpacked=${PORTWIDE_KERNELS:-/var/cache/portwide-kernels}/qemu
if [ -d "$unpacked" ]; then
  exec "$unpacked/usr/bin/qemu-system-x86_64" -L "$unpacked/usr/share/qemu" -L "$unpacked/usr/share/seabios" "$@"
fi
exec qemu-system-x86_64 "$@"
