/**
 * Turns dumps and end events of conntrack into growing counters, exactly: each packet that the kernel counted is
 * counted once, also if its connection ended between two dumps. Pure.
 */
import type { CounterSet } from './traffic-counters.ts';

/** What the table reads of a conntrack entry. */
export interface CountedEntry {
  /** The kernel's ID of the entry. */
  readonly id: number;
  readonly details: {
    /** undefined where the kernel does not count (`nf_conntrack_acct`). */
    readonly counters: { readonly packets: number; readonly bytes: number } | undefined;
  };
}

/** Connections that the table follows, at about 130 bytes each: 34 MB. */
const MAX_CONNECTIONS = 1 << 18;
const FIRST_CAPACITY = 1024;
const NOT_COUNTED = { packets: 0, bytes: 0 } as const;

/**
 * The connections of the last dump. Between `beginDump` and `endDump` a dump and events may arrive in any order.
 * Counting begins when the first dump ends: connections that exist then count as connections, but their earlier
 * traffic does not.
 */
export class ConnectionTable<Entry extends CountedEntry> {
  readonly #find: (entry: Entry) => CounterSet | undefined;
  readonly #max: number;
  readonly #slots = new Map<number, number>();
  readonly #free: number[] = [];
  #counters: (CounterSet | undefined)[] = [];
  #packets = new Float64Array(FIRST_CAPACITY);
  #bytes = new Float64Array(FIRST_CAPACITY);
  #seenIn = new Uint32Array(FIRST_CAPACITY);
  /** Number of slots that were ever used. */
  #used = 0;
  #dump = 0;
  #isDumping = false;
  /** IDs of entries that ended during the dump: a reply that was on its way must not revive them. */
  readonly #ended = new Set<number>();
  /** Whether an end since the last dump stood for several: then most entries end without an event. */
  #isSampled = false;
  /** Slots that the last dump missed while ends were sampled: they do not count as connections until a dump has them. */
  readonly #missing = new Set<number>();
  /** Number of entries that the table could not follow in the last dump, because it is full. */
  #untracked = 0;

  /**
   * @param find the counters of an entry; undefined for an entry that no Service has.
   * @param max number of connections that the table follows.
   */
  constructor(find: (entry: Entry) => CounterSet | undefined, max = MAX_CONNECTIONS) {
    this.#find = find;
    this.#max = max;
  }

  /** Number of connections in the table. */
  get size(): number {
    return this.#slots.size;
  }

  /** Number of connections of the last dump that did not fit: they count when they end. */
  get untracked(): number {
    return this.#untracked;
  }

  beginDump(): void {
    this.#dump += 1;
    this.#isDumping = true;
    this.#untracked = 0;
    this.#ended.clear();
  }

  /** An entry of the dump. */
  seen(entry: Entry): void {
    const id = entry.id | 0;
    if (this.#ended.size > 0 && this.#ended.has(id)) return;
    const slot = this.#slots.get(id);
    if (slot !== undefined) {
      this.#seenIn[slot] = this.#dump;
      if (this.#missing.size > 0 && this.#missing.delete(slot)) this.#addConnections(slot, 1);
      this.#advance(slot, entry);
      return;
    }
    const counters = this.#find(entry);
    if (counters === undefined) return;
    if (this.#slots.size >= this.#max) {
      this.#untracked += 1;
      return;
    }
    const added = this.#addSlot(id, counters);
    for (const counter of counters) counter.connections += 1;
    // Connections of the first dump are older than the counters.
    if (this.#dump === 1) this.#store(added, entry.details.counters ?? NOT_COUNTED);
    else {
      for (const counter of counters) counter.opened += 1;
      this.#advance(added, entry);
    }
  }

  /**
   * The end of an entry, with its final counters.
   * @param weight Number of ends that this one stands for, if only a part of them is read.
   */
  ended(entry: Entry, weight = 1): void {
    const id = entry.id | 0;
    if (weight > 1) this.#isSampled = true;
    if (this.#isDumping) this.#ended.add(id);
    const slot = this.#slots.size > 0 ? this.#slots.get(id) : undefined;
    if (slot !== undefined) {
      this.#advance(slot, entry, weight);
      this.#removeSlot(id, slot);
      return;
    }
    // Began and ended between two dumps. Before the end of the first dump its age is unknown.
    if (this.#dump < 2 && (this.#dump === 0 || this.#isDumping)) return;
    const { packets, bytes } = entry.details.counters ?? NOT_COUNTED;
    for (const counter of this.#find(entry) ?? []) {
      counter.opened += weight;
      counter.packets += packets * weight;
      counter.bytes += bytes * weight;
    }
  }

  /**
   * Ends a dump. Call it when all events of the time of the dump have arrived. Entries that are missing in two dumps
   * ended without an event; their traffic after the last dump that had them is lost. While ends are sampled, an entry is
   * no connection once a dump misses it, but keeps its slot: if the dump was wrong, its packets must not count again.
   * @returns steps that the caller runs to the end; events may arrive between two steps.
   */
  *endDump(): Generator<undefined, void, undefined> {
    this.#isDumping = false;
    this.#ended.clear();
    const isSampled = this.#isSampled;
    this.#isSampled = false;
    for (const [id, slot] of this.#slots) {
      const missed = this.#dump - (this.#seenIn[slot] ?? 0);
      if (missed >= 2) this.#removeSlot(id, slot);
      else if (missed === 1 && isSampled) {
        this.#missing.add(slot);
        this.#addConnections(slot, -1);
      }
      yield;
    }
  }

  /** Adds the traffic since the entry was last seen. */
  #advance(slot: number, { details: { counters: now } }: CountedEntry, weight = 1): void {
    if (now === undefined) return;
    // An older reply may arrive after a newer event.
    const packets = Math.max(now.packets - (this.#packets[slot] ?? 0), 0);
    const bytes = Math.max(now.bytes - (this.#bytes[slot] ?? 0), 0);
    if (packets === 0) return;
    this.#store(slot, now);
    for (const counter of this.#counters[slot] ?? []) {
      counter.packets += packets * weight;
      counter.bytes += bytes * weight;
    }
  }

  #store(slot: number, { packets, bytes }: { packets: number; bytes: number }): void {
    this.#packets[slot] = packets;
    this.#bytes[slot] = bytes;
  }

  #addSlot(id: number, counters: CounterSet): number {
    const slot = this.#free.pop() ?? this.#used++;
    if (slot >= this.#packets.length) this.#grow();
    this.#slots.set(id, slot);
    this.#counters[slot] = counters;
    this.#seenIn[slot] = this.#dump;
    this.#store(slot, NOT_COUNTED);
    return slot;
  }

  #addConnections(slot: number, count: number): void {
    for (const counter of this.#counters[slot] ?? []) counter.connections += count;
  }

  #removeSlot(id: number, slot: number): void {
    if (!this.#missing.delete(slot)) this.#addConnections(slot, -1);
    this.#slots.delete(id);
    this.#counters[slot] = undefined;
    this.#free.push(slot);
  }

  #grow(): void {
    const doubled = <T extends Float64Array | Uint32Array>(old: T, bigger: T): T => {
      bigger.set(old);
      return bigger;
    };
    const length = this.#packets.length * 2;
    this.#packets = doubled(this.#packets, new Float64Array(length));
    this.#bytes = doubled(this.#bytes, new Float64Array(length));
    this.#seenIn = doubled(this.#seenIn, new Uint32Array(length));
  }
}
