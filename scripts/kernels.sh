#!/bin/sh
# Downloads stock Debian kernels for the tests, without installing them. Each gets a directory
# <cache>/<version, such as 6.1> with
#   vmlinuz   the kernel
#   modules   its modules, to be mounted at /lib/modules
#   initrd    starts test/uml/init.sh from the machine's file system
#   release   as `uname -r` prints it
# Also unpacks nft (see nft.sh), and a newer QEMU into <cache>/qemu if the installed one is too old.
set -eu
scripts=$(cd "$(dirname -- "$0")" && pwd)
. "$scripts/debian-packages.sh"

# Packs a shell and the modules of a root file system on virtiofs.
make_initrd() {
  unpacked=$1
  release=$2
  root=$unpacked/initrd
  mkdir -p "$root/bin" "$root/modules" "$root/new"
  # In /bin or /usr/bin.
  find "$unpacked/busybox" -path '*/bin/busybox' -exec cp {} "$root/bin/" \;
  ln -s busybox "$root/bin/sh"
  for name in virtio_pci virtiofs; do
    modprobe -d "$unpacked" -S "$release" --show-depends "$name"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
    name=$(basename "$module" .xz)
    case $module in
      *.xz) xz -dc "$module" >"$root/modules/$name" ;;
      *) cp "$module" "$root/modules/$name" ;;
    esac
    echo "$name" >>"$root/modules/order"
  done
  (cd "$root" && find . | cpio --quiet -o -H newc)
}

# Adds the first process of the checkout, which may be newer than the kernel: a kernel unpacks several archives.
add_init() {
  cp "$1/modules.cpio" "$1/initrd.new"
  directory=$(mktemp -d)
  install -m 755 "$scripts/../test/uml/qemu-init.sh" "$directory/init"
  (cd "$directory" && echo init | cpio --quiet -o -H newc) >>"$1/initrd.new"
  rm -r "$directory"
  mv "$1/initrd.new" "$1/initrd"
}

# The kernel $1 of the suite $2.
fetch() {
  target=$cache/$1
  [ -e "$target/release" ] && [ -e "$target/modules.cpio" ] && return
  echo "Downloading the kernel of Debian $2"
  update "$2"
  package=$(apt "$2" apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p')
  release=${package#linux-image-}
  unpacked=$target.unpacked
  rm -rf "$target" "$unpacked"
  unpack "$2" "$unpacked" "$package"
  unpack "$2" "$unpacked/busybox" busybox-static
  # Newer packages have /usr/lib/modules only, and depmod looks in /lib/modules.
  [ -e "$unpacked/lib" ] || ln -s usr/lib "$unpacked/lib"
  depmod -b "$unpacked" "$release"
  make_initrd "$unpacked" "$release" >"$unpacked/modules.cpio"
  mkdir "$target"
  mv "$unpacked/boot/vmlinuz-$release" "$target/vmlinuz"
  mv "$unpacked/lib/modules" "$target/modules"
  mv "$unpacked/modules.cpio" "$target/"
  echo "$release" >"$target/release"
  rm -r "$unpacked"
}

fetch 6.1 bookworm
fetch 6.12 trixie
"$scripts/nft.sh" 1.0.6 1.1.3
for version in 6.1 6.12; do add_init "$cache/$version"; done

# Linux 6.12 crashes in one of six boots in QEMU 7.2 without KVM, at random places.
if ! [ -e "$cache/qemu" ] && qemu-system-x86_64 --version | grep -q 'version [1-7]\.'; then
  echo "Downloading QEMU of Debian bookworm-backports"
  update bookworm-backports
  rm -rf "$cache/qemu.new"
  unpack bookworm-backports "$cache/qemu.new" qemu-system-x86 qemu-system-data seabios
  mv "$cache/qemu.new" "$cache/qemu"
fi
