#!/bin/sh
# nft.sh VERSION... unpacks nft of other Debian releases beside its libraries, without installing it, into the directory
# <cache>/nft-<version>. A script `nft` in the directory runs it. The version `newest` is that of Debian sid: delete its
# directory for a later one.
set -eu
. "$(dirname -- "$0")/debian-packages.sh"

# The nft $1 of the suite $2.
fetch_nft() {
  files=$cache/nft-$1
  [ -e "$files/nft" ] && return
  echo "Downloading nft of Debian $2"
  update "$2"
  rm -rf "$files"
  unpack "$2" "$files" nftables libnftables1 libnftnl11 libmnl0 libxtables12 libjansson4 libgmp10 \
    libedit2 libbsd0 libmd0 libtinfo6 libc6
  # Newer packages have /usr/lib only.
  loader=$(find "$files" -name 'ld-linux-*.so.*' ! -type l | head -n 1)
  libraries=$(find "$files" -path '*/lib/*-linux-gnu' | paste -s -d :)
  program=$(find "$files" -path '*/sbin/nft')
  printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' "$loader" "$libraries" "$program" >"$files/nft.new"
  chmod +x "$files/nft.new"
  version=$("$files/nft.new" --version)
  case $1 in
    newest) echo "$version" ;;
    *) echo "$version" | grep -F "v$1 " || fail "cannot get nft $1 of Debian $2: got $version" ;;
  esac
  mv "$files/nft.new" "$files/nft"
}

for version; do
  case $version in
    1.0.6) fetch_nft "$version" bookworm ;;
    1.1.3) fetch_nft "$version" trixie ;;
    newest) fetch_nft "$version" sid ;;
    *)
      echo "nft.sh: unknown version $version" >&2
      exit 1
      ;;
  esac
done
