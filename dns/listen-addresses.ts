/** Decides which addresses the server listens on, and retries when listening fails. */
import { familyOf, isLinkLocal, isUnspecified } from '../api/addresses.ts';
import { asError } from '../api/errors.ts';
import type { DnsServer } from './server.ts';

interface ListenAddressesOptions {
  readonly server: Pick<DnsServer, 'addresses' | 'listen' | 'close'>;
  /**
   * Listening on an address failed and will be retried. Called for the first of several failures.
   */
  readonly onFailure: (address: string, error: Error) => void;
  /** Listening succeeded after `onFailure`. */
  readonly onRecovery: (address: string) => void;
  /** Milliseconds between attempts. */
  readonly retryMs?: number;
}

/**
 * A new IPv6 address cannot be bound for a second or two, during duplicate address detection (RFC
 * 4862).
 */
const RETRY_MS = 1000;

/** Keeps a server listening on a set of addresses that may change. */
export class ListenAddresses {
  readonly #options: Required<ListenAddressesOptions>;
  readonly #failing = new Map<string, Error>();
  #desired: ReadonlySet<string> = new Set();
  #reconciling: Promise<void> | undefined;
  #isDirty = false;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(options: ListenAddressesOptions) {
    this.#options = { retryMs: RETRY_MS, ...options };
  }

  /** Desired addresses on which listening fails, with the error. */
  get failing(): ReadonlyMap<string, Error> {
    return this.#failing;
  }

  /**
   * Replaces the desired addresses. Resolves once each new address was tried; failed ones are
   * retried later.
   */
  async set(addresses: readonly string[]): Promise<void> {
    this.#desired = new Set(addresses);
    await this.#reconcile();
  }

  /** Stops retrying. The server keeps the addresses on which it listens. */
  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  #reconcile(): Promise<void> {
    this.#isDirty = true;
    this.#reconciling ??= this.#reconcileAll().finally(() => {
      this.#reconciling = undefined;
    });
    return this.#reconciling;
  }

  async #reconcileAll(): Promise<void> {
    const { server, retryMs } = this.#options;
    clearTimeout(this.#timer);
    while (this.#isDirty) {
      this.#isDirty = false;
      for (const address of server.addresses) {
        if (!this.#desired.has(address)) server.close(address);
      }
      for (const address of this.#failing.keys()) {
        if (!this.#desired.has(address)) this.#failing.delete(address);
      }
      for (const address of this.#desired) {
        if (this.#isClosed) return;
        if (!server.addresses.includes(address)) await this.#try(address);
      }
    }
    if (this.#failing.size === 0 || this.#isClosed) return;
    this.#timer = setTimeout(() => void this.#reconcile(), retryMs).unref();
  }

  async #try(address: string): Promise<void> {
    const { server, onFailure, onRecovery } = this.#options;
    try {
      await server.listen(address);
      if (this.#failing.delete(address)) onRecovery(address);
    } catch (error) {
      const reason = asError(error);
      if (!this.#failing.has(address)) onFailure(address, reason);
      this.#failing.set(address, reason);
    }
  }
}

/**
 * Replaces `0.0.0.0` and `::` by the host's addresses of that family. IPv6 link-local addresses
 * are left out, because binding them requires the interface.
 */
export function expandUnspecified(
  given: readonly string[],
  ofHost: readonly string[],
): readonly string[] {
  const single = given.flatMap((address) => {
    if (!isUnspecified(address)) return [address];
    const family = familyOf(address);
    return ofHost.filter((each) => familyOf(each) === family && !isLinkLocal(each));
  });
  return [...new Set(single)];
}
