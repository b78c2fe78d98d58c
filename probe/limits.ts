/** Limits of this process and node that bound a probe. */

/** Descriptors that Node.js and its libraries use besides the sockets of probes. */
const OTHER_DESCRIPTORS = 64;

/**
 * The soft limit of open files.
 * @param limits content of /proc/self/limits.
 * @returns undefined if unlimited or unreadable.
 */
export function openFilesLimit(limits: string): number | undefined {
  const soft = /^Max open files\s+(\d+)/m.exec(limits)?.[1];
  return soft === undefined ? undefined : Number(soft);
}

/** The number of sockets that may be open at once. @param openFiles limit of descriptors. */
export function boundedConcurrency(wanted: number, openFiles: number | undefined): number {
  if (openFiles === undefined) return wanted;
  return Math.max(1, Math.min(wanted, openFiles - OTHER_DESCRIPTORS));
}

/**
 * Why a probe could fill the conntrack table of this node, which would drop the connections of others.
 * @param count, max values of nf_conntrack_count and nf_conntrack_max; undefined: conntrack is not loaded.
 * @returns undefined if there is room for an entry for each probe.
 */
export function conntrackProblem(
  probes: number,
  count: string | undefined,
  max: string | undefined,
): string | undefined {
  const room = Number(max) - Number(count);
  if (count === undefined || max === undefined || !(probes > room)) return undefined;
  return (
    `${probes} probes may need ${probes} conntrack entries, and the table of this node has room for ${Math.max(room, 0)}: ` +
    'probe fewer ports, such as --ports=random:200, or one protocol at a time'
  );
}
