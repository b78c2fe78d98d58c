/**
 * The upstream resolvers of `--forward`: given directly, or read from files such as resolv.conf,
 * whose changes are followed.
 */
import { readFile } from 'node:fs/promises';
import { asError } from '../api/errors.ts';
import type { Resolver } from './exchange.ts';
import { formatResolver, readResolvConf } from './resolver-address.ts';

/** One item of `--forward`. */
export type ForwardTarget =
  | { readonly resolver: Resolver }
  /** Path of a resolv.conf. */
  | { readonly file: string };

interface ResolverListOptions {
  readonly targets: readonly ForwardTarget[];
  /** Called when the list of resolvers changes, not for the initial list. */
  readonly onChange: (resolvers: readonly Resolver[]) => void;
  /**
   * A file can no longer be read or has no valid nameserver; its last resolvers stay in use. Called
   * once until the file is valid again.
   */
  readonly onFailure: (file: string, error: Error) => void;
  /** @throws (as a rejection) the system error */
  readonly read?: (file: string) => Promise<string>;
}

/**
 * Milliseconds between two reads of the files. Polling works with any editor, symbolic link and
 * ConfigMap, and the files are short.
 */
export const RELOAD_PERIOD = 5000;

/** A resolver file has no valid nameserver. */
class NoResolvers extends Error {
  override readonly name = 'NoResolvers';

  constructor(file: string) {
    super(`${file} has no valid nameserver line; add one, or name another file or address`);
  }
}

/** Keeps the list of resolvers in sync with files. */
export class ResolverList {
  readonly #options: Required<ResolverListOptions>;
  /** The resolvers that each file listed last. */
  readonly #resolversByFile = new Map<string, readonly Resolver[]>();
  readonly #failing = new Set<string>();
  #lastReported = '';

  constructor(options: ResolverListOptions) {
    this.#options = { read: (file) => readFile(file, 'utf8'), ...options };
  }

  /**
   * Reads the files.
   * @throws (as a rejection) if a file cannot be read or has no valid nameserver
   */
  async start(): Promise<readonly Resolver[]> {
    for (const file of this.#files()) this.#resolversByFile.set(file, await this.#read(file));
    const resolvers = this.#resolvers();
    this.#lastReported = textOf(resolvers);
    return resolvers;
  }

  /** Reads all files again. Never rejects. */
  async reload(): Promise<void> {
    const { onChange, onFailure } = this.#options;
    for (const file of this.#files()) {
      try {
        this.#resolversByFile.set(file, await this.#read(file));
        this.#failing.delete(file);
      } catch (error) {
        if (!this.#failing.has(file)) onFailure(file, asError(error));
        this.#failing.add(file);
      }
    }
    const resolvers = this.#resolvers();
    const text = textOf(resolvers);
    if (text === this.#lastReported) return;
    this.#lastReported = text;
    onChange(resolvers);
  }

  #files(): string[] {
    return this.#options.targets.flatMap((target) => ('file' in target ? target.file : []));
  }

  async #read(file: string): Promise<readonly Resolver[]> {
    const resolvers = readResolvConf(await this.#options.read(file));
    if (resolvers.length === 0) throw new NoResolvers(file);
    return resolvers;
  }

  /** In the order of the targets, without duplicates. */
  #resolvers(): readonly Resolver[] {
    const all = this.#options.targets.flatMap((target) =>
      'file' in target ? (this.#resolversByFile.get(target.file) ?? []) : target.resolver,
    );
    return [...new Map(all.map((each) => [formatResolver(each), each])).values()];
  }
}

function textOf(resolvers: readonly Resolver[]): string {
  return resolvers.map(formatResolver).join();
}
