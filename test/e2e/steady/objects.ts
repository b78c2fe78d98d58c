/** Writes objects to the API server, and writes them again after the server lost them. */
import type { RemoteDouble } from '../../api-server/remote.ts';
import { keyOf, metadataOf } from '../../api-server/store.ts';
import type { Manifest } from '../manifests.ts';
import type { ObjectChanges } from '../population.ts';

/** Objects per call to the fake API server. */
const AT_A_TIME = 250;

export class WrittenObjects {
  readonly #double: RemoteDouble;
  readonly #objects = new Map<string, Manifest>();
  /** Objects deleted since the snapshot: the server has them again once it restores the snapshot. */
  #deleted = new Map<string, Manifest>();

  constructor(double: RemoteDouble) {
    this.#double = double;
  }

  async write({ put, remove }: ObjectChanges): Promise<void> {
    for (const object of remove) {
      this.#objects.delete(idOf(object));
      this.#deleted.set(idOf(object), object);
    }
    for (const object of put) {
      this.#objects.set(idOf(object), object);
      this.#deleted.delete(idOf(object));
    }
    await this.#send('delete', remove);
    await this.#send('put', put);
  }

  async takeSnapshot(): Promise<void> {
    this.#deleted = new Map();
    await this.#double.call('takeSnapshot');
  }

  /** Restores the snapshot, as from a backup of etcd. */
  async restore(): Promise<void> {
    await this.#double.call('restore');
  }

  /** Writes everything that a restored server lost. */
  async writeAgain(): Promise<void> {
    await this.#send('delete', [...this.#deleted.values()]);
    await this.#send('put', [...this.#objects.values()]);
  }

  async #send(method: 'put' | 'delete', objects: readonly Manifest[]): Promise<void> {
    for (let at = 0; at < objects.length; at += AT_A_TIME) {
      await this.#double.call(method, ...objects.slice(at, at + AT_A_TIME));
    }
  }
}

function idOf(object: Manifest): string {
  return `${object.kind} ${keyOf(metadataOf(object))}`;
}
