/** What is measured: something that keeps the rules of a cluster in the kernel. */

/** One sync as an observer of the whole agent sees it; seconds. */
export interface Timing {
  /** From the first object handed over until the kernel has the rules. */
  readonly total: number;
  /** The part of it after everything was resolved and compiled. */
  readonly load: number;
  /** Chains written or removed. */
  readonly written: number;
}

/** A Service proxy on one node; each call ends when the kernel has what it asks for. */
export interface Subject {
  /** Brings the whole cluster into the kernel. */
  start(): Promise<Timing>;
  /** Gives Service number `index` another last endpoint; see `member`. */
  replaceEndpoint(index: number, spare: number): Promise<Timing>;
  add(index: number): Promise<Timing>;
  /** As `add`, on every port; undefined: it has none such. */
  readonly addAllPorts: ((index: number) => Promise<Timing>) | undefined;
  remove(index: number): Promise<Timing>;
  stop(): Promise<void>;
}
