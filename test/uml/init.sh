#!/bin/sh
# The first process inside user-mode-linux, and the second in QEMU: mounts file systems, loads modules, runs the command
# given as arguments, writes its exit status, and resets the kernel. boot.ts sets the environment on
# the kernel's command line:
#   UML_ROOT       the checkout, where the command runs
#   UML_MOUNT      arguments that mount a directory of the host as /run/host: the only writable directory
#                  of the host, because the root file system is the host's, read-only
# A failure before /run/host is mounted is printed on the console and ends init, and thus the
# kernel.
set -eu
export PATH="$UML_ROOT/node_modules/.bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -p /run/host /run/tmp /run/netns /run/lock
# Not /tmp: the checkout may be there.
export TMPDIR=/run/tmp HOME=/run/tmp
# shellcheck disable=SC2086 # a list of words
mount $UML_MOUNT /run/host

# All modules at once, and ipv6 first. Loading them on demand would take several processes for each, which takes longer
# than the agent waits for nft in an emulated processor. User-mode-linux has no nf_tables.
run() {
  modprobe -aq nf_tables nft_numgen nft_ct nft_nat nft_masq nft_reject_inet nft_reject_ipv4 nft_reject_ipv6 nft_log \
    nft_limit nft_queue nft_fib_ipv4 nft_fib_ipv6 nft_compat nfnetlink_queue nfnetlink_log \
    nf_flow_table nf_flow_table_inet nft_flow_offload || true
  modprobe -a ipv6 veth bridge dummy nf_conntrack nf_conntrack_netlink \
    ip_vs ip_vs_rr ip_vs_wrr ip_vs_lc ip_vs_wlc ip_vs_sh ip_vs_mh \
    iptable_nat iptable_filter iptable_mangle ip6table_nat ip6table_filter ip6table_mangle \
    ipt_REJECT ip6t_REJECT xt_MASQUERADE xt_TPROXY xt_REDIRECT xt_nat xt_mark xt_connmark xt_conntrack \
    xt_comment xt_addrtype xt_statistic xt_recent xt_multiport xt_set \
    ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet \
    ip_set_hash_net ip_set_hash_netnet ip_set_hash_ipmark ip_set_bitmap_port &&
    ip link set lo up &&
    cd "$UML_ROOT" &&
    "$@"
}

status=0
run "$@" >/run/host/output 2>&1 </dev/null || status=$?
echo "$status" >/run/host/status
# Like `halt -f -p`, which not every machine has. boot.ts boots the kernel with noreboot.
echo b >/proc/sysrq-trigger
sleep 60
