#!/bin/sh
# Writes the Helm chart to DIRECTORY/portwide-VERSION.tgz (default: dist) in the format of `helm
# package`. Equal sources and SOURCE_DATE_EPOCH (default: the time of the commit) give equal bytes.
# Needs GNU tar.
set -eu
cd "$(dirname -- "$0")/.."
directory=${1:-dist}
version=$(sed -n 's/^version: //p' deploy/chart/portwide/Chart.yaml)
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || echo 0)}"

mkdir -p "$directory"
package=$directory/portwide-$version.tgz
# Without a pipe, in which sh would hide a failure of tar.
trap 'rm -f "$package.tar"' EXIT
tar --create --file="$package.tar" --directory=deploy/chart --dereference --format=ustar --sort=name \
  --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
  --exclude-from=deploy/chart/portwide/.helmignore portwide
gzip -n -9 <"$package.tar" >"$package"
echo "$package"
