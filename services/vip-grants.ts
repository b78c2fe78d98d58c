/** Grants requests for ports of VIPs in the order of their priority. */
import { compareText, getOrCreate } from '../api/collections.ts';
import { isSameNamespace, PROTOCOLS, type Protocol } from '../api/objects.ts';
import type { PortRange } from '../api/ports.ts';
import { indexIn } from './vip-claims.ts';
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
  /** Requests for one port, one for each port that was granted or released. */
  readonly ports: readonly VipRequest[];
}

/** Requests for one listed port of a VIP that may be decided differently now. */
interface PendingPort {
  /** Any request for the port. */
  readonly example: VipRequest;
  /** Requests that are new, or that a more general request may win against. */
  readonly requests: Set<VipRequest>;
}

/**
 * Decides between requests of Services that may share a VIP. A request is refused if it conflicts with a granted
 * request of higher priority: both are of one kind and overlap, or it is more specific and of another namespace. So an
 * older Service keeps all that it claimed; within one namespace the most specific request gets the packets.
 *
 * No request loses against a more specific one. So requests for ranges and all ports are decided first, in the order of
 * their priority. Then each listed port is decided by itself, because Services that share a VIP may list thousands.
 */
export class VipGrants {
  /** Requests by VIP and port, VIP and block of ports, or VIP; each sorted by priority. */
  readonly #cells = new Map<string, VipRequest[]>();
  /** The granted request for each listed port, by VIP and cell; undefined if all are refused. */
  readonly #listed = new Map<string, Map<string, VipRequest | undefined>>();
  /** Numbers of requests for ranges and all ports, by VIP. */
  readonly #generalCounts = new Map<string, number>();
  /** Refused requests, each with the first request that it conflicts with. */
  readonly #winners = new Map<VipRequest, VipRequest>();

  /** The request that wins against a request; undefined if it is granted. */
  winnerOver(request: VipRequest): VipRequest | undefined {
    return this.#winners.get(request);
  }

  /** Granted requests for one port of a VIP. */
  *grantedPorts(vip: string): Iterable<VipRequest> {
    for (const granted of this.#listed.get(vip)?.values() ?? [])
      if (granted !== undefined) yield granted;
  }

  /** The granted request for the same listed port of the VIP. */
  grantedPort(request: VipRequest): VipRequest | undefined {
    return this.#listed.get(request.vip)?.get(cellsOf(request)[0] ?? '');
  }

  /** Removes and adds requests; what is absent is not removed, and what is present not added. */
  replace(removed: Iterable<VipRequest>, added: Iterable<VipRequest>): GrantChanges {
    const pending = new PendingRequests();
    const decided = new Set<VipRequest>();
    const ports: VipRequest[] = [];
    const gone = [...removed].filter((request) => this.#remove(request));
    const fresh = new Set([...added].filter((request) => this.#insert(request)));
    for (const request of gone) {
      const wasGranted = !this.#winners.delete(request);
      if (request.match.kind === 'port') pending.port(request);
      else if (wasGranted) for (const other of this.#weaker(request)) pending.add(other);
    }
    for (const request of fresh) pending.add(request);
    const settle = (request: VipRequest, winner: VipRequest | undefined) => {
      const isNew = fresh.delete(request);
      if (isNew || winner !== this.#winners.get(request)) decided.add(request);
      if (winner === undefined) this.#winners.delete(request);
      else this.#winners.set(request, winner);
    };
    for (let request = pending.take(); request !== undefined; request = pending.take()) {
      const wasGranted = !fresh.has(request) && !this.#winners.has(request);
      const winner = this.#findWinner(request);
      settle(request, winner);
      if (wasGranted === (winner === undefined)) continue;
      for (const other of this.#weaker(request)) pending.add(other);
    }
    for (const [cell, { example, requests }] of pending.ports)
      if (this.#decidePort(cell, example, requests, settle)) ports.push(example);
    return { decided, ports };
  }

  /** @returns whether it was absent. */
  #insert(request: VipRequest): boolean {
    if (this.#has(request)) return false;
    for (const key of cellsOf(request)) {
      const cell = this.#cells.get(key);
      // Most cells keep a single request, and a literal has no spare capacity.
      if (cell === undefined) this.#cells.set(key, [request]);
      else cell.splice(indexIn(cell, request, compareRequests), 0, request);
    }
    this.#countGeneral(request, 1);
    return true;
  }

  /** @returns whether it was present. */
  #remove(request: VipRequest): boolean {
    if (!this.#has(request)) return false;
    for (const key of cellsOf(request)) {
      const cell = this.#cells.get(key) ?? [];
      cell.splice(indexIn(cell, request, compareRequests), 1);
      if (cell.length === 0) this.#cells.delete(key);
    }
    this.#countGeneral(request, -1);
    return true;
  }

  #countGeneral({ vip, match }: VipRequest, change: 1 | -1): void {
    if (match.kind === 'port') return;
    const count = (this.#generalCounts.get(vip) ?? 0) + change;
    if (count === 0) this.#generalCounts.delete(vip);
    else this.#generalCounts.set(vip, count);
  }

  #has(request: VipRequest): boolean {
    const cell = this.#cells.get(cellsOf(request)[0] ?? '') ?? [];
    return cell[indexIn(cell, request, compareRequests)] === request;
  }

  /**
   * Decides one listed port: the requests that changed, or all if the granted one did.
   * @returns whether the port was granted or released.
   */
  #decidePort(
    key: string,
    example: VipRequest,
    changed: ReadonlySet<VipRequest>,
    settle: (request: VipRequest, winner: VipRequest | undefined) => void,
  ): boolean {
    const cell = this.#cells.get(key) ?? [];
    const general = this.#grantedOver(example);
    const granted = cell.find((request) => !general.some((other) => beats(other, request)));
    const listed = getOrCreate(this.#listed, example.vip, () => new Map());
    const before = listed.get(key);
    if (cell.length > 0) listed.set(key, granted);
    else listed.delete(key);
    if (listed.size === 0) this.#listed.delete(example.vip);
    const winners = granted === undefined ? general : [...general, granted];
    winners.sort(compareRequests);
    for (const request of granted === before ? changed : cell) {
      settle(
        request,
        winners.find((other) => beats(other, request)),
      );
    }
    return (granted === undefined) !== (before === undefined);
  }

  /** The granted requests for ranges and all ports that include a listed port: at most one of each. */
  #grantedOver(port: VipRequest): VipRequest[] {
    const granted: VipRequest[] = [];
    if (!this.#generalCounts.has(port.vip)) return granted;
    for (const key of [...blockCells(port), allCell(port.vip)]) {
      const isGranted = (each: VipRequest) => !this.#winners.has(each) && includes(each, port);
      const first = this.#cells.get(key)?.find(isGranted);
      if (first !== undefined) granted.push(first);
    }
    return granted;
  }

  /** The first granted request that a request for ranges or all ports loses against; all before it are decided. */
  #findWinner(request: VipRequest): VipRequest | undefined {
    let winner: VipRequest | undefined;
    for (const key of new Set([...cellsOf(request), allCell(request.vip)])) {
      for (const other of this.#cells.get(key) ?? []) {
        if (other.priority >= (winner ?? request).priority) break;
        if (!this.#winners.has(other) && beats(other, request) && includes(other, request))
          winner = other;
      }
    }
    return winner;
  }

  /** Requests that lose against a request for ranges or all ports if it is granted. */
  *#weaker(request: VipRequest): Iterable<VipRequest> {
    for (const key of this.#weakerCells(request)) {
      for (const other of this.#cells.get(key) ?? [])
        if (beats(request, other) && includes(request, other)) yield other;
    }
  }

  /** The cells with requests that may lose against a request for ranges or all ports. */
  #weakerCells(request: VipRequest): Iterable<string> {
    const { vip, match } = request;
    const own = cellsOf(request);
    const listed = [...(this.#listed.get(vip)?.keys() ?? [])];
    if (match.kind === 'all') return [...own, ...allBlockCells(vip), ...listed];
    const isIncluded = (key: string) => {
      const port = this.#cells.get(key)?.[0];
      return port !== undefined && includes(request, port);
    };
    return [...own, ...listed.filter(isIncluded)];
  }
}

/** Requests to decide, each once. */
class PendingRequests {
  /** Requests for ranges and all ports, the first last. */
  readonly #general: VipRequest[] = [];
  readonly #added = new Set<VipRequest>();
  /** Requests for listed ports, by cell. */
  readonly ports = new Map<string, PendingPort>();

  add(request: VipRequest): void {
    if (request.match.kind === 'port') {
      this.port(request).requests.add(request);
      return;
    }
    if (this.#added.has(request)) return;
    this.#added.add(request);
    const index = indexIn(this.#general, request, (a, b) => compareRequests(b, a));
    this.#general.splice(index, 0, request);
  }

  /** The listed port that a request is for, to decide. */
  port(request: VipRequest): PendingPort {
    const create = () => ({ example: request, requests: new Set<VipRequest>() });
    return getOrCreate(this.ports, cellsOf(request)[0] ?? '', create);
  }

  /** Takes the first request for ranges or all ports. */
  take(): VipRequest | undefined {
    const request = this.#general.pop();
    if (request !== undefined) this.#added.delete(request);
    return request;
  }
}

/** Whether `request` loses against `other` where they overlap, if `other` is granted. */
function beats(other: VipRequest, request: VipRequest): boolean {
  if (other.priority >= request.priority) return false;
  const more = RANK[request.match.kind] - RANK[other.match.kind];
  // A lookup finds the more specific match first, so a less specific one takes nothing from it.
  if (more < 0) return false;
  return more === 0 || !isSameNamespace(request.serviceKey, other.serviceKey);
}

/** Whether two requests overlap. @param other is as general as `request`, or more general. */
function includes(other: VipRequest, request: VipRequest): boolean {
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

/** The cells of the request itself. */
function cellsOf(request: VipRequest): string[] {
  const { vip, match } = request;
  if (match.kind === 'all') return [allCell(vip)];
  if (match.kind === 'ranges') return [...blockCells(request)];
  return [portCell(vip, match.protocol, match.port)];
}

function allCell(vip: string): string {
  return `${vip} all`;
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
