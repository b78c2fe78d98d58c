#!/bin/sh
# Downloads stock Debian kernels for the tests, without installing them: from this machine's mirror, with
# an apt configuration of their own. Each gets a directory <cache>/<version, such as 6.1> with
#   vmlinuz   the kernel
#   modules   its modules, to be mounted at /lib/modules
#   initrd    starts test/uml/init.sh from the machine's file system
#   release   as `uname -r` prints it
# and each nft a directory <cache>/nft-<version> with its libraries and a script that runs it.
# Also unpacks a newer QEMU into <cache>/qemu if the installed one is too old.
set -eu
cache=${PORTWIDE_KERNELS:-/var/cache/portwide-kernels}
checkout=$(cd "$(dirname -- "$0")/.." && pwd)
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Created-By: Packages' | head -n 1)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# Runs a command of apt for a suite.
apt() {
  directory=$cache/apt/$1
  program=$2
  shift 2
  "$program" -qq -o "Dir::Etc::SourceList=$directory/sources.list" -o Dir::Etc::SourceParts=- \
    -o "Dir::State::Lists=$directory/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$directory" \
    -o APT::Sandbox::User=root "$@"
}

update() {
  mkdir -p "$cache/apt/$1/lists/partial" "$cache/apt/$1/archives/partial"
  echo "deb [signed-by=$keyring] $mirror $1 main" >"$cache/apt/$1/sources.list"
  apt "$1" apt-get update
}

# Unpacks packages of the suite $1 into the directory $2.
unpack() {
  (
    mkdir -p "$2"
    cd "$2"
    suite=$1
    shift 2
    for package; do apt "$suite" apt-get download "$package/$suite"; done
    for file in *.deb; do dpkg-deb -x "$file" .; done
    rm ./*.deb
  )
}

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
  install -m 755 "$checkout/test/uml/qemu-init.sh" "$directory/init"
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

# The nft $1 of the suite $2.
fetch_nft() {
  files=$cache/nft-$1
  [ -e "$files/nft" ] && return
  echo "Downloading nft of Debian $2"
  [ -e "$cache/apt/$2/sources.list" ] || update "$2"
  rm -rf "$files"
  unpack "$2" "$files" nftables libnftables1 libnftnl11 libmnl0 libxtables12 libjansson4 libgmp10 \
    libedit2 libbsd0 libmd0 libtinfo6 libc6
  # Newer packages have /usr/lib only.
  libraries=$files/lib/x86_64-linux-gnu:$files/usr/lib/x86_64-linux-gnu
  loader=$(find "$files" -name ld-linux-x86-64.so.2 ! -type l | head -n 1)
  program=$(find "$files" -path '*/sbin/nft')
  printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' "$loader" "$libraries" "$program" >"$files/nft.new"
  chmod +x "$files/nft.new"
  "$files/nft.new" --version | grep -F "v$1 "
  mv "$files/nft.new" "$files/nft"
}

fetch 6.1 bookworm
fetch 6.12 trixie
fetch_nft 1.0.6 bookworm
fetch_nft 1.1.3 trixie
for version in 6.1 6.12; do add_init "$cache/$version"; done

# Linux 6.12 crashes in one of six boots in QEMU 7.2 without KVM, at random places.
if ! [ -e "$cache/qemu" ] && qemu-system-x86_64 --version | grep -q 'version [1-7]\.'; then
  echo "Downloading QEMU of Debian bookworm-backports"
  update bookworm-backports
  rm -rf "$cache/qemu.new"
  unpack bookworm-backports "$cache/qemu.new" qemu-system-x86 qemu-system-data seabios
  mv "$cache/qemu.new" "$cache/qemu"
fi
