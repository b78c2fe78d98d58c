import type { InvalidObject } from '../api/errors.ts';
import type { ApiObject, Kind, ObjectKey } from '../api/objects.ts';
import type { ObjectSink } from '../sources/store.ts';
import type { DnsRecord } from './records.ts';

export interface ZoneOptions {
  /** `cluster.local`: lower-case, without the final dot. */
  readonly clusterDomain: string;
  /** The feature gate `AllPorts`. */
  readonly allPortsEnabled: boolean;
  /** A record that cannot be written; the Service's others are served. Called as it appears. */
  readonly onProblem?: (problem: InvalidObject) => void;
}

/** The records of a cluster, kept up to date object by object. */
export class Zone implements ObjectSink {
  readonly clusterDomain: string;

  constructor(options: ZoneOptions) {
    this.clusterDomain = options.clusterDomain;
  }

  /**
   * All records of a name (lower-case, no final dot). Empty: the name exists, or lies above one that
   * does, and has none (NODATA). undefined: no such name.
   */
  lookup(_name: string): readonly DnsRecord[] | undefined {
    return undefined;
  }

  /** All sources have listed. */
  get isSynced(): boolean {
    return false;
  }

  /** Grows with every change of the records; for the SOA. */
  get serial(): number {
    return 0;
  }

  upsert(_object: ApiObject): void {}

  remove(_kind: Kind, _key: ObjectKey): void {}

  synced(_kind: Kind): void {}
}
