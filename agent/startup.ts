/** Waits at the start for the inputs of the rules: first lists, the Node, its pod CIDRs. */
import type { Logger } from 'pino';
import type { RunOptions } from '../config/settings.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import type { SourceObserver } from '../sources/kubernetes/source.ts';
import type { ObjectContext } from './context.ts';
import type { OwnNode } from './own-node.ts';

/** The parts of the context that Startup uses. */
interface StartupInputs extends Pick<ObjectContext, 'nodeName' | 'changes'> {
  readonly options: Pick<RunOptions, 'manifests' | 'detectLocalMode'>;
  readonly table: Pick<RouteTable, 'unsynced' | 'awaitedPods' | 'node'>;
  readonly log: Pick<Logger, 'warn' | 'error'>;
}

export class Startup {
  readonly #given: StartupInputs;
  readonly #ownNode: Pick<OwnNode, 'isAwaited' | 'awaitsAddresses' | 'settled'>;
  /** Description of the API server. */
  #server = 'the API server';

  constructor(
    given: StartupInputs,
    ownNode: Pick<OwnNode, 'isAwaited' | 'awaitsAddresses' | 'settled'>,
  ) {
    this.#given = given;
    this.#ownNode = ownNode;
  }

  /** Descriptions of the missing inputs for operators; empty if none is missing. */
  missingInputs = (): readonly string[] => {
    const { options, nodeName, table } = this.#given;
    const node = `Node "${nodeName}"`;
    const unsynced = [...table.unsynced];
    if (unsynced.length > 0 && options.manifests !== undefined) {
      return [`manifests in ${options.manifests}`];
    }
    if (unsynced.length > 0) {
      return unsynced.map((kind) => `${kind === 'Node' ? node : `${kind}s`} from ${this.#server}`);
    }
    if (table.awaitedPods.size > 0) {
      return [...table.awaitedPods].map(
        (namespace) => `Pods of namespace ${namespace} from ${this.#server}`,
      );
    }
    if (this.#ownNode.isAwaited) return [`${node} (${this.#server} has no such object)`];
    if (this.#ownNode.awaitsAddresses) return [`addresses of ${node}`];
    return this.#needsCidrs && this.#podCidrs.length === 0
      ? [`pod CIDRs of ${node} (--detect-local-mode=NodeCIDR)`]
      : [];
  };

  /** Wraps an observer to learn the API server's host for `missingInputs`. Forwards all calls. */
  observing(observer: SourceObserver): SourceObserver {
    return {
      ...observer,
      request: (request) => {
        this.#server = `the API server ${request.host}`;
        observer.request(request);
      },
    };
  }

  /**
   * Waits for the first lists of the kinds that serve Services, for the Node (see `OwnNode` for the timeout), and for
   * its pod CIDRs if the rules depend on them. If they do, the process exits when the pod CIDRs change later: as in
   * kube-proxy, rules are made for one set of pod CIDRs.
   * @param reading the start of the source. It may never resolve, if network policy needs lists that fail.
   * @returns the pod CIDRs of the Node if the rules depend on them, otherwise none.
   */
  async complete(reading: Promise<void>): Promise<readonly string[]> {
    const { settled } = this.#ownNode;
    await Promise.race([reading.then(() => settled), settled]);
    // The race also handles a rejection of `reading` after `settled`. Such a rejection is a bug: leave it unhandled.
    void reading.then(() => undefined);
    if (!this.#needsCidrs) return [];
    const { changes, nodeName, log } = this.#given;
    if (this.#podCidrs.length === 0) {
      log.warn(
        { node: nodeName, setting: '--detect-local-mode' },
        'waiting for pod CIDRs of the Node',
      );
    }
    while (this.#podCidrs.length === 0) {
      await new Promise<void>((resolve) => changes.once('change', resolve));
    }
    const podCidrs = this.#podCidrs;
    changes.on('change', () => this.#exitIfChanged(podCidrs));
    return podCidrs;
  }

  get #needsCidrs(): boolean {
    return this.#given.options.detectLocalMode === 'NodeCIDR';
  }

  get #podCidrs(): readonly string[] {
    return this.#given.table.node?.podCIDRs ?? [];
  }

  #exitIfChanged(before: readonly string[]): void {
    const { table, log } = this.#given;
    const now = table.node?.podCIDRs;
    if (now === undefined || now.join() === before.join()) return;
    log.error({ before, now }, 'pod CIDRs of the Node changed; exiting for a restart');
    process.exit(1);
  }
}
