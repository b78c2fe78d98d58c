/** Interface of a measured Service proxy. */

/** Durations of one sync in seconds. */
export interface SyncTiming {
  /** From the first delivered object until the kernel has the rules. */
  readonly total: number;
  /** The sync itself: for Portwide `SyncReport.seconds`, for kube-proxy's rules the command. */
  readonly load: number;
  /** `SyncReport.written`; for kube-proxy's rules, the number of chains written. */
  readonly written: number;
}

/** Changes of one Service, with their row titles. */
export const CHANGES = {
  replace: 'one endpoint replaced',
  add: 'one Service added',
  addAllPorts: 'one all-ports Service added',
  remove: 'one Service removed',
} as const;
export type ChangeKind = keyof typeof CHANGES;
export const changeKinds = Object.keys(CHANGES) as readonly ChangeKind[];

/** A Service proxy on one node. Each call resolves when the kernel has the requested state. */
export interface Subject {
  /** Applies the whole cluster to the kernel. */
  start(): Promise<SyncTiming>;
  /**
   * Changes Service number `index`. `replace` gives it another last endpoint, see `serviceObjects`.
   */
  change(kind: ChangeKind, index: number, spare?: number): Promise<SyncTiming>;
  stop(): Promise<void>;
}

/** Size of the cluster, and number of changes of each kind after the load. */
export interface LoadOptions {
  readonly services: number;
  readonly changes: number;
}

/**
 * Makes changes, alternating between the kinds. `replace` changes a Service in the middle of the
 * cluster (numbers 0 to `services`); the other kinds add and remove new Services.
 */
export async function runChanges<Each>(
  kinds: readonly ChangeKind[],
  { services, changes }: LoadOptions,
  make: (kind: ChangeKind, index: number, spare: number) => Promise<Each>,
): Promise<Record<ChangeKind, Each[]>> {
  const made: Record<ChangeKind, Each[]> = { replace: [], add: [], addAllPorts: [], remove: [] };
  for (let round = 1; round <= changes; round++) {
    const fresh = services + round;
    const indices = {
      replace: Math.floor(services / 2),
      add: fresh,
      addAllPorts: fresh + changes,
      remove: fresh,
    };
    for (const kind of kinds) made[kind].push(await make(kind, indices[kind], round));
  }
  return made;
}
