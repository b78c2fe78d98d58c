/** What is measured inside user-mode-linux, each in a namespace and a process of its own. */
import type { Longest } from './stalls.ts';
import type { Timing } from './subject.ts';

/** `portwide`: the agent. `netlink`: its IPVS messages alone. `ipvsadm`: the same by commands. */
export type IpvsJob =
  | {
      readonly kind: 'portwide';
      readonly services: number;
      /** How often each kind of change is made after the start; 0 for none. */
      readonly changes: number;
      /** Where to write what `ipvsadm --save` and `ipset save` then tell; undefined: nowhere. */
      readonly save: string | undefined;
    }
  | { readonly kind: 'netlink'; readonly services: number; readonly changes: number }
  | { readonly kind: 'ipvsadm'; readonly saved: string; readonly changes: number };

/** A sync, and what held the event loop meanwhile. */
export interface StalledTiming extends Timing {
  readonly stalls: Longest;
}

export interface PortwideReport {
  readonly start: StalledTiming;
  /** MiB, peak, after the start. */
  readonly memory: number;
  readonly changes: PortwideChanges | undefined;
}

export interface PortwideChanges {
  /** The first one after the start adds an endpoint. */
  readonly first: StalledTiming;
  /** Adds an endpoint. */
  readonly grow: readonly StalledTiming[];
  readonly replace: readonly StalledTiming[];
  readonly add: readonly StalledTiming[];
  readonly addAllPorts: readonly StalledTiming[];
  readonly remove: readonly StalledTiming[];
}

/** Milliseconds. */
export interface NetlinkReport {
  readonly load: number;
  /** One destination each. */
  readonly changes: readonly number[];
}

/** Milliseconds, of commands. */
export interface IpvsadmReport {
  readonly restore: number;
  /** What goes with it in a proxy that shells out: `ipset restore`. */
  readonly restoreSets: number;
  /** `ipvsadm -a`. */
  readonly adds: readonly number[];
  /** `ipvsadm -d`. */
  readonly removes: readonly number[];
}

/** All runs. */
export interface IpvsMeasured {
  readonly kernel: string;
  readonly ipvsadm: string;
  readonly portwide: readonly PortwideReport[];
  readonly restarts: readonly PortwideReport[];
  readonly netlink: readonly NetlinkReport[];
  readonly commands: readonly IpvsadmReport[];
}
