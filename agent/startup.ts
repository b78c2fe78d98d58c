/** The inputs that a start waits for before rules can be written: first lists, the Node, its pod CIDRs. */
import type { Logger } from 'pino';
import type { RunOptions } from '../config/settings.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import type { SourceObserver } from '../sources/kubernetes/source.ts';
import type { ObjectContext } from './context.ts';
import type { OwnNode } from './own-node.ts';

/** What it needs of the context. */
interface StartupInputs extends Pick<ObjectContext, 'nodeName' | 'changes'> {
  readonly options: Pick<RunOptions, 'manifests' | 'detectLocalMode'>;
  readonly table: Pick<RouteTable, 'unsynced' | 'node'>;
  readonly log: Pick<Logger, 'warn' | 'error'>;
}

export class Startup {
  readonly #given: StartupInputs;
  readonly #ownNode: Pick<OwnNode, 'isAwaited' | 'settled'>;
  /** The API server, in words. */
  #server = 'the API server';

  constructor(given: StartupInputs, ownNode: Pick<OwnNode, 'isAwaited' | 'settled'>) {
    this.#given = given;
    this.#ownNode = ownNode;
  }

  /** The inputs that are still missing, in words for operators; empty if none is. */
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
    if (this.#ownNode.isAwaited) return [`${node} (${this.#server} has no such object)`];
    return this.#needsCidrs && this.#podCidrs.length === 0
      ? [`pod CIDRs of ${node} (--detect-local-mode=NodeCIDR)`]
      : [];
  };

  /** Wraps an observer to learn the API server's name for `missingInputs`; all calls are passed on. */
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
   * Waits until nothing is missing. From then on the process ends when the pod CIDRs change: as in kube-proxy, the
   * rules are made for one set of them.
   * @param reading the start of the source. Network policy may need lists that take longer, or never come.
   * @returns the pod CIDRs of the Node, if rules depend on them.
   */
  async complete(reading: Promise<void>): Promise<readonly string[]> {
    const { settled } = this.#ownNode;
    await Promise.race([reading.then(() => settled), settled]);
    // The race counts as a handler of every rejection; later ones are bugs and must be loud.
    void reading.then(() => undefined);
    if (!this.#needsCidrs) return [];
    const { changes, nodeName, log } = this.#given;
    if (this.#podCidrs.length === 0) {
      log.warn({ node: nodeName }, 'waiting for the Node to have pod CIDRs (--detect-local-mode)');
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
    log.error({ before, now }, 'the pod CIDRs of this Node changed; ending for a restart');
    process.exit(1);
  }
}
