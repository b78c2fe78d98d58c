#!/bin/sh
# setup.sh [--modules] GOAL... installs the requirements of goals of make: npm modules if they differ from the lock file,
# and on a Debian machine the packages of missing commands. With --modules, goals need no network namespaces, and root
# only if a command is missing.
set -eu
cd "$(dirname -- "$0")/.."

only_modules=
if [ "${1-}" = --modules ]; then
  only_modules=yes
  shift
elif [ "$(id -u)" -ne 0 ]; then
  echo "This needs root to create network namespaces and install packages. Try: sudo make ${*:-setup}" >&2
  exit 1
fi

# command:package
needed="npm:npm"
case " $* " in
  *" dist "* | *" image "* | *" image-lock "* | *" test-dist "*)
    needed="$needed git:git gzip:gzip dpkg-deb:dpkg apt-get:apt /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring"
    ;;
esac
if [ -n "$only_modules" ]; then
  set --
else
  needed="$needed ip:iproute2 iptables-nft:iptables nft:nftables ipset:ipset ping:iputils-ping sysctl:procps conntrack:conntrack"
fi
# Tests and benchmarks also run in a separate kernel, user-mode-linux: see test/uml.
kernel=
case " $* " in
  # Tests of the status page, of releases and upgrades, and of the programs that an agent runs.
  *" test "*) needed="$needed chromium:chromium git:git strace:strace" ;;
esac
case " $* " in
  *" test "* | *" bench "*)
    kernel=yes
    needed="$needed linux.uml:user-mode-linux ipvsadm:ipvsadm modprobe:kmod openssl:openssl dig:bind9-dnsutils groff:groff-base"
    ;;
esac
case " $* " in
  *" test-kernels "*)
    needed="$needed qemu-system-x86_64:qemu-system-x86 ipvsadm:ipvsadm modprobe:kmod cpio:cpio xz:xz-utils"
    # Part of QEMU's packages in Debian 12.
    [ "$(. /etc/os-release && echo "${VERSION_ID:-13}")" = 12 ] || needed="$needed /usr/libexec/virtiofsd:virtiofsd"
    ;;
esac
case " $* " in
  # The Debian package runs in a new root, the image in a container.
  *" test-dist "*) needed="$needed mmdebstrap:mmdebstrap groff:groff-base crun:crun skopeo:skopeo" ;;
esac
case " $* " in
  # TURN relays with calls.
  *" test "* | *" demo-media "*) needed="$needed turnserver:coturn tcpdump:tcpdump" ;;
esac
case " $* " in
  # SIP user agents with calls.
  *" test "*) needed="$needed sipp:sip-tester" ;;
esac
missing=
for entry in $needed; do
  case $entry in
    /*) [ -e "${entry%%:*}" ] ;;
    *) command -v "${entry%%:*}" >/dev/null 2>&1 ;;
  esac || missing="$missing ${entry#*:}"
done
if [ -n "$missing" ]; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Packages are missing. Install them as root: apt-get install --no-install-recommends$missing" >&2
    exit 1
  fi
  echo "Installing with apt:$missing"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  case "$missing" in
    # A masked unit: the package would start a relay on this machine.
    *coturn*)
      mkdir -p /etc/systemd/system
      [ -e /etc/systemd/system/coturn.service ] || ln -s /dev/null /etc/systemd/system/coturn.service
      ;;
  esac
  # shellcheck disable=SC2086 # a list of words
  apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

# Extract promtool, which the tests use, without installing its package: that would start a server.
case " $* " in
  *" test "*)
    if ! command -v promtool >/dev/null 2>&1; then
      echo "Downloading promtool from the package prometheus"
      (
        directory=$(mktemp -d)
        trap 'rm -rf "$directory"' EXIT
        cd "$directory"
        [ -n "$missing" ] || apt-get update -qq
        apt-get download -qq -o APT::Sandbox::User=root prometheus
        dpkg -x prometheus_*.deb .
        install usr/bin/promtool /usr/local/bin/
      )
    fi
    ;;
esac

# Tests write tables with nft of other releases.
case " $* " in
  *" test "*) scripts/nft.sh 1.0.6 1.1.3 newest ;;
esac

# user-mode-linux uses this machine's root file system, and modprobe looks in /lib/modules.
if [ -n "$kernel" ]; then
  for modules in /usr/lib/uml/modules/*; do
    [ -e "/lib/modules/${modules##*/}" ] && continue
    mkdir -p /lib/modules
    ln -sfn "$modules" /lib/modules/
  done
fi

# npm copies the lock file to node_modules when it installs.
if ! node_modules/.bin/node --version >/dev/null 2>&1 ||
  [ package-lock.json -nt node_modules/.package-lock.json ]; then
  echo "Installing modules with npm"
  npm ci --no-audit --no-fund --loglevel=error
  touch node_modules/.package-lock.json
fi

# Check before the demo or a test fails half-way.
[ -n "$only_modules" ] || scripts/check-machine.sh
