#!/bin/sh
# Checks the requirements of the demo and the tests in a temporary network namespace. If a
# requirement is not met, prints one sentence with the problem and the solution, and exits with
# status 1.
set -eu

namespace=portwide-check-$$
trap 'ip netns delete "$namespace" 2>/dev/null || :' EXIT
trap 'exit 1' INT TERM HUP

# attempt WHAT ADVICE COMMAND...
attempt() {
  what=$1 advice=$2
  shift 2
  output=$("$@" 2>&1) && return
  case $output in
    # ip creates a mount namespace for each command, which fails in a chroot whose / is not a mount
    # point.
    *"mount --make"*"Invalid argument"*)
      advice="/ is not a mount point; before entering the chroot run: mount --bind DIRECTORY DIRECTORY" ;;
  esac
  echo "This machine cannot $what ($(printf %s "$output" | tr '\n' ' ')): $advice." >&2
  exit 1
}

attempt 'create network namespaces' \
  'run as root with CAP_SYS_ADMIN; a container must be privileged' \
  ip netns add "$namespace"
attempt 'run commands in a network namespace' \
  'run as root with CAP_SYS_ADMIN and CAP_NET_ADMIN' \
  ip -n "$namespace" link set lo up
attempt 'create veth pairs' \
  'the kernel needs the module veth (modprobe veth)' \
  ip -n "$namespace" link add portwide-a type veth peer name portwide-b
attempt 'set sysctls of a network namespace' \
  '/proc/sys must be writable; a container must be privileged' \
  ip netns exec "$namespace" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
attempt 'create nf_tables tables' \
  'the kernel needs the module nf_tables (modprobe nf_tables), and nft needs CAP_NET_ADMIN' \
  ip netns exec "$namespace" nft add table ip portwide-check
