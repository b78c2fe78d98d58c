/** The first connections of a dump in the order in which people look at them, in bounded memory. Pure. */
import type { DetailedEntry } from '../../netlink/conntrack/conntrack.ts';

interface Ranked<Row> {
  readonly rank: number;
  /** Milliseconds since 1970; the order of the dump without `net.netfilter.nf_conntrack_timestamp`. */
  readonly at: number;
  readonly row: Row;
}

/**
 * Established connections and flows of protocols without states come first, closed ones last; the older first.
 */
export class ConnectionList<Row> {
  readonly #limit: number;
  #kept: Ranked<Row>[] = [];
  /** The worst connection of a full list. */
  #last: Ranked<Row> | undefined;
  #total = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Number of all connections. */
  get total(): number {
    return this.#total;
  }

  /** @param row called only for a connection that may stay in the list. */
  add({ tcpState, startedAt }: DetailedEntry['details'], row: () => Row): void {
    this.#total += 1;
    const place = { rank: rankOf(tcpState), at: startedAt ?? this.#total };
    if (this.#last !== undefined && compare(place, this.#last) >= 0) return;
    this.#kept.push({ ...place, row: row() });
    if (this.#kept.length >= 2 * this.#limit) this.#cut();
  }

  rows(): Row[] {
    this.#cut();
    return this.#kept.map(({ row }) => row);
  }

  #cut(): void {
    this.#kept.sort(compare);
    if (this.#kept.length < this.#limit) return;
    this.#kept.length = this.#limit;
    this.#last = this.#kept.at(-1);
  }
}

type Place = Pick<Ranked<unknown>, 'rank' | 'at'>;

function compare(a: Place, b: Place): number {
  return a.rank - b.rank || a.at - b.at;
}

function rankOf(tcpState: string | undefined): number {
  if (tcpState === undefined || tcpState === 'ESTABLISHED') return 0;
  return tcpState === 'TIME_WAIT' || tcpState === 'CLOSE' ? 2 : 1;
}
