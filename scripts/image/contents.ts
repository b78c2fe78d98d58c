/** What the image contains from Debian. */

/** As in Containerfile. */
export const SUITE = 'bookworm';

/**
 * Packages with everything that they depend on. Node.js needs libstdc++6, nsenter libselinux1. kmod
 * loads modules where /lib/modules is mounted.
 */
export const WHOLE = ['iptables', 'ipset', 'conntrack', 'kmod', 'libstdc++6', 'libselinux1'];

/**
 * Single files of packages, whose other files and dependencies the image does not need. Copyright
 * files are always included.
 */
export const PARTIAL: Readonly<Record<string, readonly string[]>> = {
  // The copyright files of other packages refer to these licences. Scanners read os-release.
  'base-files': [
    'etc/debian_version',
    'etc/os-release',
    'usr/lib/os-release',
    'usr/share/common-licenses',
  ],
  // The launcher is a shell script: it chooses flags of V8 that no variable can set.
  dash: ['usr/bin/dash', 'usr/bin/sh'],
  // The launcher runs dirname and readlink. `kubectl portwide` runs env.
  coreutils: ['usr/bin/dirname', 'usr/bin/env', 'usr/bin/readlink'],
  // `portwide probe`.
  'util-linux': ['usr/bin/nsenter'],
};

/** Directories and files of packages that nothing in the image reads. */
export const EXCLUDED = [
  /^usr\/share\/(man|info|locale|lintian|bug|bash-completion|initramfs-tools|doc-base)\//,
  // Licences remain. Links between directories of documentation lead to them.
  /^usr\/share\/doc\/[^/]+\/(?!copyright$)/,
  // Conversions between character sets, and OpenSSL's loadable engines.
  /^usr\/lib\/[^/]+\/(gconv|audit|engines-3|ossl-modules)\//,
  /^etc\/(init\.d|default|cron\.\w+)\//,
  /^usr\/lib\/(systemd|init)\//,
];

/**
 * Links that maintainer scripts make with update-alternatives: Debian's default is the nft variant.
 * The agent runs both variants by their full names.
 */
export const LINKS: Readonly<Record<string, string>> = {
  'usr/bin/sh': 'dash',
  ...Object.fromEntries(
    [
      'iptables',
      'iptables-save',
      'iptables-restore',
      'ip6tables',
      'ip6tables-save',
      'ip6tables-restore',
    ].map((name) => [`usr/sbin/${name}`, name.replace('tables', 'tables-nft')]),
  ),
};
