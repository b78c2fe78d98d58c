/** What is measured: something that keeps the rules of a cluster in the kernel. */

/** One sync as an observer of the whole agent sees it; seconds. */
export interface SyncTiming {
  /** From the first object handed over until the kernel has the rules. */
  readonly total: number;
  /** The part of it after everything was resolved and compiled. */
  readonly load: number;
  /** Chains written or removed. */
  readonly written: number;
}

/** Changes of one Service, and what rows call them. */
export const CHANGES = {
  replace: 'one endpoint replaced',
  add: 'one Service added',
  addAllPorts: 'one all-ports Service added',
  remove: 'one Service removed',
} as const;
export type ChangeKind = keyof typeof CHANGES;
export const changeKinds = Object.keys(CHANGES) as readonly ChangeKind[];

/** A Service proxy on one node; each call ends when the kernel has what it asks for. */
export interface Subject {
  /** Brings the whole cluster into the kernel. */
  start(): Promise<SyncTiming>;
  /** Makes a change of Service number `index`; `replace` gives it another last endpoint, see `member`. */
  change(kind: ChangeKind, index: number, spare?: number): Promise<SyncTiming>;
  stop(): Promise<void>;
}

/** How a cluster is loaded, and how often each kind of change is made then. */
export interface LoadOptions {
  readonly services: number;
  readonly changes: number;
}

/**
 * Makes changes by turns, each kind so often: of a Service in the middle of the cluster, which has numbers up to
 * and with `services`, and of new ones.
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
