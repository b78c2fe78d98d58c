/** Grants requests for ports of VIPs in the order of their priority. */
import { compareText, getOrCreate, setList } from '../api/collections.ts';
import { isSameNamespace, PROTOCOLS, type Protocol } from '../api/objects.ts';
import type { PortRange } from '../api/ports.ts';
import { indexIn, insertSorted } from './vip-claims.ts';
import { rangesOf, type VipRequest } from './vip-requests.ts';

/** Ports are indexed in blocks of 4096: few entries for a wide range, few requests in the block of a narrow range. */
const BLOCK_BITS = 12;
const LAST_BLOCK = 65535 >> BLOCK_BITS;

/** How specific a match is. */
const RANK = { all: 0, ranges: 1, port: 2 } as const;

/** Requests that changed the side, and listed ports that were granted or released. */
export interface GrantChanges {
  /** Requests that are granted, refused, or refused for another request than before. */
  readonly decided: ReadonlySet<VipRequest>;
  /** Requests for one port, one for each port that may have been granted or released. */
  readonly ports: Iterable<VipRequest>;
}

/**
 * Decides between requests of Services that may share a VIP. A request is refused if it conflicts with a granted
 * request of higher priority: both are of one kind and overlap, or it is more specific and of another namespace. So an
 * older Service keeps all that it claimed; within one namespace the most specific request gets the packets.
 */
export class VipGrants {
  /** Requests by VIP and port, VIP and block of ports, or VIP; each sorted by priority. */
  readonly #cells = new Map<string, readonly VipRequest[]>();
  /** A request for each listed port of a VIP, by VIP and cell. */
  readonly #listed = new Map<string, Map<string, VipRequest>>();
  /** Refused requests, each with the first request that it conflicts with. */
  readonly #winners = new Map<VipRequest, VipRequest>();

  /** The request that wins against a request; undefined if it is granted. */
  winnerOver(request: VipRequest): VipRequest | undefined {
    return this.#winners.get(request);
  }

  /** Granted requests for one port of a VIP. */
  *grantedPorts(vip: string): Iterable<VipRequest> {
    for (const key of this.#listed.get(vip)?.keys() ?? []) {
      const granted = this.#grantedIn(key);
      if (granted !== undefined) yield granted;
    }
  }

  /** The granted request for the same listed port of the VIP. */
  grantedPort(request: VipRequest): VipRequest | undefined {
    return this.#grantedIn(this.#cellsOf(request)[0] ?? '');
  }

  /** Removes and adds requests; what is absent is not removed, and what is present not added. */
  replace(removed: Iterable<VipRequest>, added: Iterable<VipRequest>): GrantChanges {
    const pending = new PendingRequests();
    const decided = new Set<VipRequest>();
    const ports = new Map<string, VipRequest>();
    const touch = (request: VipRequest) => {
      if (request.match.kind === 'port') ports.set(this.#cellsOf(request)[0] ?? '', request);
    };
    for (const request of removed) {
      if (!this.#has(request)) continue;
      const wasGranted = !this.#winners.delete(request);
      this.#updateCells(request, false);
      touch(request);
      if (wasGranted) for (const other of this.#weaker(request)) pending.add(other);
    }
    const fresh = new Set<VipRequest>();
    for (const request of added) {
      if (this.#has(request)) continue;
      this.#updateCells(request, true);
      fresh.add(request);
      pending.add(request);
    }
    for (let request = pending.take(); request !== undefined; request = pending.take()) {
      const wasGranted = !fresh.has(request) && !this.#winners.has(request);
      const before = this.#winners.get(request);
      const winner = this.#findWinner(request, fresh);
      const isNew = fresh.delete(request);
      if (winner === undefined) this.#winners.delete(request);
      else this.#winners.set(request, winner);
      if (!isNew && winner === before) continue;
      decided.add(request);
      touch(request);
      if (wasGranted === (winner === undefined)) continue;
      for (const other of this.#weaker(request)) pending.add(other);
    }
    return { decided, ports: ports.values() };
  }

  #has(request: VipRequest): boolean {
    const cell = this.#cells.get(this.#cellsOf(request)[0] ?? '') ?? [];
    return cell[indexIn(cell, request, compareRequests)] === request;
  }

  #updateCells(request: VipRequest, isPresent: boolean): void {
    const keys = this.#cellsOf(request);
    for (const key of keys) {
      const cell = this.#cells.get(key) ?? [];
      const now = isPresent
        ? insertSorted(cell, request, compareRequests)
        : cell.filter((other) => other !== request);
      setList(this.#cells, key, now);
      if (request.match.kind !== 'port') continue;
      const [first] = now;
      const listed = getOrCreate(this.#listed, request.vip, () => new Map());
      if (first === undefined) listed.delete(key);
      else listed.set(key, first);
      if (listed.size === 0) this.#listed.delete(request.vip);
    }
  }

  /** The first granted request of higher priority that conflicts. @param fresh requests that are not decided yet. */
  #findWinner(request: VipRequest, fresh: ReadonlySet<VipRequest>): VipRequest | undefined {
    let winner: VipRequest | undefined;
    for (const key of this.#strongerCells(request)) {
      for (const other of this.#cells.get(key) ?? []) {
        if (other.priority >= (winner ?? request).priority) break;
        if (fresh.has(other) || this.#winners.has(other) || !conflicts(request, other)) continue;
        winner = other;
      }
    }
    return winner;
  }

  /** Requests of lower priority that conflict with a request. */
  *#weaker(request: VipRequest): Iterable<VipRequest> {
    for (const key of this.#weakerCells(request)) {
      for (const other of this.#cells.get(key) ?? [])
        if (other.priority > request.priority && conflicts(other, request)) yield other;
    }
  }

  #grantedIn(cell: string): VipRequest | undefined {
    return this.#cells.get(cell)?.find((request) => !this.#winners.has(request));
  }

  /** The cells of the request itself. */
  #cellsOf(request: VipRequest): string[] {
    const { vip, match } = request;
    if (match.kind === 'all') return [`${vip} all`];
    if (match.kind === 'ranges') return [...blockCells(request)];
    return [portCell(vip, match.protocol, match.port)];
  }

  /** The cells with requests that a request may lose against. */
  #strongerCells(request: VipRequest): string[] {
    const own = this.#cellsOf(request);
    if (request.match.kind === 'all') return own;
    const all = `${request.vip} all`;
    return request.match.kind === 'ranges' ? [...own, all] : [...own, ...blockCells(request), all];
  }

  /** The cells with requests that may lose against a request. */
  #weakerCells(request: VipRequest): Iterable<string> {
    const { vip, match } = request;
    const own = this.#cellsOf(request);
    if (match.kind === 'port') return own;
    const listed = this.#listed.get(vip)?.keys() ?? [];
    if (match.kind === 'ranges') return [...own, ...listed];
    return [...own, ...allBlockCells(vip), ...listed];
  }
}

/** Requests to decide, each once, taken in the order of their priority. */
class PendingRequests {
  #sorted: readonly VipRequest[] = [];
  readonly #added = new Set<VipRequest>();
  readonly #unsorted = new Set<VipRequest>();
  #next = 0;

  add(request: VipRequest): void {
    if (this.#added.has(request)) return;
    this.#added.add(request);
    this.#unsorted.add(request);
  }

  take(): VipRequest | undefined {
    if (this.#unsorted.size > 0) {
      const left = this.#sorted.slice(this.#next);
      this.#sorted = left.concat([...this.#unsorted]).sort(compareRequests);
      this.#next = 0;
      this.#unsorted.clear();
    }
    const request = this.#sorted[this.#next++];
    if (request !== undefined) this.#added.delete(request);
    return request;
  }
}

/** Whether `request` loses against `other`, if `other` is granted and has higher priority. */
function conflicts(request: VipRequest, other: VipRequest): boolean {
  const more = RANK[request.match.kind] - RANK[other.match.kind];
  // A lookup finds the more specific match first, so a less specific one takes nothing from it.
  if (more < 0) return false;
  if (more > 0 && isSameNamespace(request.serviceKey, other.serviceKey)) return false;
  return other.match.kind === 'all' || overlap(rangesOf(request), rangesOf(other));
}

/** Whether two sorted lists of disjoint ranges overlap. */
function overlap(a: readonly PortRange[], b: readonly PortRange[]): boolean {
  let [i, j] = [0, 0];
  for (;;) {
    const [x, y] = [a[i], b[j]];
    if (x === undefined || y === undefined) return false;
    const order = PROTOCOLS.indexOf(x.protocol) - PROTOCOLS.indexOf(y.protocol);
    if (order < 0 || (order === 0 && x.to < y.from)) i++;
    else if (order > 0 || y.to < x.from) j++;
    else return true;
  }
}

function compareRequests(a: VipRequest, b: VipRequest): number {
  return compareText(a.priority, b.priority);
}

function portCell(vip: string, protocol: Protocol, port: number): string {
  return `${vip} ${protocol}/${port}`;
}

function blockCell(vip: string, protocol: Protocol, block: number): string {
  return `${vip} ranges ${protocol}/${block}`;
}

/** The blocks that a request for ports or ranges touches. */
function blockCells(request: VipRequest): Set<string> {
  const cells = new Set<string>();
  let [last, lastProtocol]: [number, Protocol | undefined] = [-1, undefined];
  // The ranges are sorted. Many of them touch the block of the one before.
  for (const { protocol, from, to } of rangesOf(request)) {
    if (protocol !== lastProtocol) last = -1;
    lastProtocol = protocol;
    const first = Math.max(from >> BLOCK_BITS, last + 1);
    for (let block = first; block <= to >> BLOCK_BITS; block++) {
      cells.add(blockCell(request.vip, protocol, block));
    }
    last = to >> BLOCK_BITS;
  }
  return cells;
}

function allBlockCells(vip: string): string[] {
  return PROTOCOLS.flatMap((protocol) =>
    Array.from({ length: LAST_BLOCK + 1 }, (_, block) => blockCell(vip, protocol, block)),
  );
}
