#!/bin/sh
# Runs make as root in a privileged Debian container, on the kernel of this machine. For CI, whose
# machines have other distributions: scripts/in-debian.sh test
#
# Some kernel features load on demand, so a missing module would fail a test half-way, with an
# unclear message. This loads each module first, and exits with all that are missing.
set -eu
image=docker.io/library/debian:trixie-slim

# module:what the tests use it for
needed="veth:network_namespaces nf_tables:mode_nftables nft_numgen:endpoint_selection
nft_ct:conntrack_state nft_nat:DNAT nft_masq:masquerade nft_reject_inet:rejects nft_compat:iptables-nft
nf_conntrack_netlink:conntrack_dumps nfnetlink_queue:DNS_queue nft_log:refused_packets
nfnetlink_log:refused_packets xt_NFQUEUE:DNS_queue xt_recent:session_affinity
xt_statistic:endpoint_selection ip_tables:iptables-legacy br_netfilter:bridges"

if [ "$(id -u)" -ne 0 ]; then
  echo "This needs root to load kernel modules. Try: sudo $0 $*" >&2
  exit 1
fi

# Ubuntu's kernels for clouds have some modules in a package of their own.
release=$(uname -r)
extra=linux-modules-extra-$release
if command -v apt-get >/dev/null && apt-cache show "$extra" >/dev/null 2>&1; then
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$extra" >/dev/null
fi

missing=
for entry in $needed; do
  modprobe "${entry%%:*}" 2>/dev/null ||
    missing="$missing ${entry%%:*} ($(echo "${entry#*:}" | tr _ ' '))"
done
if [ -n "$missing" ]; then
  echo "The kernel $release lacks modules that the tests need:$missing." >&2
  exit 1
fi
# The hosts of the lab answer SCTP packets themselves (test/lab/sctp.ts). The kernel's SCTP would
# answer the same packets with ABORT.
if [ -e "${PROC:-/proc}/net/sctp" ]; then
  echo "The kernel module sctp is loaded and would answer packets of the tests. Try: modprobe -r sctp" >&2
  exit 1
fi

cd "$(dirname -- "$0")/.."
# git refuses a checkout of another user.
# shellcheck disable=SC2016 # "$@" is for the shell in the container
exec docker run --rm --privileged --volume "$PWD:/src" --workdir /src "$image" sh -euc '
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends ca-certificates git make >/dev/null
  git config --global --add safe.directory /src
  exec make "$@"
' make "$@"
