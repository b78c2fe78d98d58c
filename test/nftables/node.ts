/** A node for property tests: takes cluster objects and runs mode nftables for one family. */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { ComparedObject } from '../../proxier/compared-object.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import type { NodeAddresses } from '../../services/node-port-addresses.ts';
import type { Route } from '../../services/route.ts';
import { upsertWithPods } from '../fixtures.ts';
import type { ClusterChange } from '../iptables/generated.ts';
import type { NetnsHelper } from '../netlink/namespace.ts';
import type { ModeOptions } from './options.ts';

let agents = 0;

export class Node {
  readonly #family: IpFamily;
  readonly #helper: NetnsHelper;
  readonly #name = `agent ${agents++}`;
  readonly #table = new RouteTable({
    nodeName: 'node-a',
    allPortsEnabled: true,
    onChange: () => {},
  });
  #addresses: readonly string[] = [];
  readonly #routes = new Map<string, Route>();

  private constructor(family: IpFamily, helper: NetnsHelper) {
    this.#family = family;
    this.#helper = helper;
  }

  /** Starts the agent, which does not write before `apply`. */
  static async start(
    family: IpFamily,
    helper: NetnsHelper,
    options: ModeOptions = { family, nodePortSelection: ['all'], rejectsOnLocalhost: true },
  ): Promise<Node> {
    const node = new Node(family, helper);
    await helper.call('modeStart', node.#name, options);
    return node;
  }

  /** All Routes of the family. */
  get routes(): readonly Route[] {
    return [...this.#routes.values()];
  }

  /** Addresses of the family. */
  get nodeAddresses(): NodeAddresses {
    const addresses = this.#addresses.filter((address) => familyOf(address) === this.#family);
    return { addresses, primary: addresses.slice(0, 1) };
  }

  async feed(steps: readonly ClusterChange[]): Promise<void> {
    for (const step of steps) {
      if ('upsert' in step) upsertWithPods(this.#table, step.upsert);
      else if ('remove' in step) this.#table.remove(step.remove.kind, step.remove.key);
      else {
        this.#table.setNodeAddresses(new Set(step.nodeAddresses));
        this.#addresses = step.nodeAddresses;
      }
    }
    const { upserts, removals } = this.#table.takeChanges().routes;
    const isOurs = (route: { readonly family: IpFamily }) => route.family === this.#family;
    for (const { id } of removals) this.#routes.delete(id);
    for (const route of upserts.filter(isOurs)) this.#routes.set(route.id, route);
    await this.#helper.call(
      'modeUpdate',
      this.#name,
      upserts.filter(isOurs),
      removals.filter(isOurs).map(({ id }) => id),
      this.nodeAddresses,
    );
  }

  apply(full: boolean): Promise<number> {
    return this.#helper.call('modeApply', this.#name, full);
  }

  /** Objects that differ from the applied state. */
  async differences(): Promise<readonly ComparedObject[]> {
    return (await this.#helper.call('modeCompare', this.#name)).objects;
  }

  state(): Promise<Readonly<Record<string, readonly string[]>>> {
    return this.#helper.call('modeState', this.#family);
  }

  warnings(): Promise<readonly string[]> {
    return this.#helper.call('modeWarnings', this.#name);
  }

  stop(): Promise<void> {
    return this.#helper.call('modeStop', this.#name);
  }
}
