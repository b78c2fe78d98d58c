/** Sources of objects for an agent under test. */
import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { RemoteDouble } from '../api-server/remote.ts';
import { keyOf, metadataOf } from '../api-server/store.ts';
import type { Lab } from '../lab/lab.ts';
import type { Manifest } from './manifests.ts';

export interface Feed {
  /** Flags that make an agent read from this feed. */
  readonly flags: readonly string[];
  /** Whether objects of different kinds may arrive in another order than written. */
  readonly inStreams: boolean;
  /** Replaces the objects last written under `name`; an empty list removes them. */
  write(name: string, objects: readonly Manifest[]): void;
  /** Resolves when everything written can be read. */
  written(): Promise<void>;
  destroy(): void;
}

/** A manifest directory with one file per name. */
export class ManifestFeed implements Feed {
  readonly directory = mkdtempSync(join(tmpdir(), 'portwide-e2e-'));
  readonly flags = [`--manifests=${this.directory}`];
  readonly inStreams = false;

  /** Writes atomically. */
  write(name: string, objects: readonly Manifest[]): void {
    const file = join(this.directory, `${name}.json`);
    if (objects.length === 0) {
      rmSync(file, { force: true });
      return;
    }
    const draft = join(this.directory, `.${name}.draft`);
    writeFileSync(draft, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects }));
    renameSync(draft, file);
  }

  async written(): Promise<void> {}

  destroy(): void {
    rmSync(this.directory, { recursive: true, force: true });
  }
}

/** An API server on the node, which the lab stops with the node. */
export class ApiFeed implements Feed {
  readonly double: RemoteDouble;
  readonly flags: readonly string[];
  readonly inStreams = true;
  readonly #written = new Map<string, readonly Manifest[]>();
  #calls: Promise<unknown> = Promise.resolve();

  private constructor(double: RemoteDouble) {
    this.double = double;
    this.flags = [`--master=${double.url}`];
  }

  static async start(lab: Lab): Promise<ApiFeed> {
    return new ApiFeed(await RemoteDouble.start(lab.node.spawn));
  }

  write(name: string, objects: readonly Manifest[]): void {
    const idOf = (object: Manifest) => `${object.kind} ${keyOf(metadataOf(object))}`;
    const ids = new Set(objects.map(idOf));
    const removed = (this.#written.get(name) ?? []).filter((object) => !ids.has(idOf(object)));
    this.#written.set(name, objects);
    const calls = [this.double.call('put', ...objects), this.double.call('delete', ...removed)];
    this.#calls = Promise.all([this.#calls, ...calls]);
    // written() reports the error.
    this.#calls.catch(() => {});
  }

  async written(): Promise<void> {
    await this.#calls;
  }

  destroy(): void {}
}
